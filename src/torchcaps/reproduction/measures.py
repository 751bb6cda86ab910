"""What an experiment measures beside the test images of its own data set: one function a measure, by name.

Every figure is a plain number; shares, accuracies and errors are in [0, 1].
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from torchcaps import evaluation, ops
from torchcaps.data import ImageSet, load_dataset
from torchcaps.errors import AblationUnsupportedError, DatasetNotFoundError
from torchcaps.evaluation.forward import right_answers
from torchcaps.registry import Registry
from torchcaps.reporting import open_run
from torchcaps.tasks import Task
from torchcaps.training import Run, TrainConfig, load
from torchcaps.training.sampling import cropped, split

UNKNOWN = {
    "mnist": "fashion-mnist",
    "fashion-mnist": "mnist",
}  # data set -> one of the same size and other classes
SOME = 512  # test images that slow measures look at
ABLATED = 10_000  # all of most sets, for the figure stands beside the error on all
CURVE = 2048  # of each side of a viewpoint set, after every epoch
ATTACKED = 200
STRENGTHS = (0.05, 0.1, 0.2, 0.3)  # of attacks, on pixels in [0, 1]
TURN = 0.02  # the strength 0.1 of Hahn et al. on CIFAR-10, which they divided by its deviation


@dataclass(frozen=True)
class Trained:
    """A finished run."""

    run: Run  # its folder
    config: TrainConfig  # what was run
    task: Task  # around the best model by validation, in evaluation mode
    images: ImageSet  # the test images, as the model takes them

    @property
    def model(self) -> nn.Module:
        """The best by validation."""
        return self.task.model

    @property
    def one_class(self) -> bool:
        """Whether it tells which one class an image shows, as most measures need."""
        return "classes" in self.task.capabilities and self.images.labels.dim() == 1

    @property
    def routed(self) -> bool:
        """Whether there are couplings to look at besides."""
        return self.one_class and self.task.spec.pose

    def some(self, count: int = SOME) -> ImageSet:
        """Random test images, always the same ones."""
        order = torch.randperm(len(self.images), generator=torch.Generator().manual_seed(0))
        return self.images.subset(order[:count])

    def other(self, data: str) -> ImageSet:
        """Test images of another named set, as the model takes them."""
        ours = self.config.data
        found = load_dataset(
            data, "test", ours.root, img_size=ours.img_size, in_chans=self.images.in_chans
        )
        return cropped(found, ours.crop)

    def held_out(self) -> ImageSet:
        """The training images that the model was chosen with."""
        ours = self.config.data
        whole = load_dataset(
            ours.name, "train", ours.root, img_size=ours.img_size, max_bytes=ours.max_bytes
        )
        return split(whole, self.config, torch.device("cpu"))[1]

    def error(self, images: ImageSet) -> float:
        """Share of these that are wrong."""
        return float(self.task.evaluate(images).to_dict()["error"])


Figures = dict[str, Any]
Measure = Callable[[Trained], Figures]
MEASURES: Registry[Measure] = Registry("measure")
# A recipe names it among its `measures`. It returns no figures where the task or the model cannot be measured so.
register_measure = MEASURES.register


@register_measure()
def segmentation(trained: Trained) -> Figures:
    """Composites taken apart: each labeled capsule decoded alone, against the single images; and an absent one.

    `ink_absent` is the mean brightness of a class that is not there, over that of the labeled ones.
    """
    pairs = trained.some()
    singles = pairs.singles(torch.arange(len(pairs)))
    if singles is None or not trained.task.spec.decoder:
        return {}
    images, labels = pairs.float_images(), pairs.labels
    singles = singles.float() / 255 if singles.dtype == torch.uint8 else singles
    drawn = evaluation.segment(trained.model, images, labels)
    found = evaluation.score_segmentation(drawn.images, singles)
    # The next class that is neither of the two.
    absent = (labels + 1) % pairs.num_classes
    absent = torch.where((absent == labels.flip(1)), (absent + 1) % pairs.num_classes, absent)
    blank = evaluation.segment(trained.model, images, absent).images
    return {
        "iou": found.iou,
        "ink_right": found.ink_right,
        "correlation": found.correlation,
        "pixel_mse": found.error,
        "ink_absent": float(blank.mean() / drawn.images.mean()),
    }


@register_measure()
def placed(trained: Trained) -> Figures:
    """Error on digits at random places, which the experiment compares models at equal values of: its "clean" error."""
    if not trained.one_class:
        return {}
    return {
        "clean_error": trained.error(
            trained.other(f"placed-{trained.config.data.name.removeprefix('affine-')}")
        )
    }


@register_measure()
def affnist(trained: Trained) -> Figures:
    """Error on affNIST's own test images, where that set is at hand; nothing of it where it is not."""
    if not trained.one_class:
        return {}
    try:
        return {"affnist_error": trained.error(trained.other("affnist"))}
    except DatasetNotFoundError:
        return {}


@register_measure()
def viewpoints(trained: Trained) -> Figures:
    """Errors on familiar and on novel views; and, on some of each, after every epoch whose model was kept."""
    if not trained.one_class:
        return {}
    familiar, novel = trained.other(f"{trained.config.data.name}-familiar"), trained.images
    figures: Figures = {
        "familiar_error": trained.error(familiar),
        "novel_error": trained.error(novel),
    }
    kept = [
        trained.run.epoch_model_path(epoch)
        for epoch in range(1, trained.config.training.epochs + 1)
    ]
    models = [load(path) for path in kept if path.exists()]
    if models:
        views = {
            "familiar": replace(trained, images=familiar).some(CURVE),
            "novel": trained.some(CURVE),
        }
        figures["curve"] = {
            name: [evaluation.evaluate(model, some).accuracy for model in models]
            for name, some in views.items()
        }
    return figures


@register_measure()
def ablation(trained: Trained) -> Figures:
    """The trained model with uniform and with random couplings at test time."""
    if not trained.routed:
        return {}
    some = trained.some(ABLATED)
    try:
        found = evaluation.routing_ablation(trained.model, some.float_images(), some.labels)
    except AblationUnsupportedError:
        return {}
    return {"uniform_at_test_error": 1 - found.uniform, "changed_by_routing": found.changed}


@register_measure()
def diagnostics(trained: Trained) -> Figures:
    """Every measure of routing (docs/diagnostics.md); the table shows couplings and dead capsules of the last layer."""
    if not trained.routed:
        return {}
    found = evaluation.diagnose(trained.model, trained.images)
    last = found.layers[-1]
    shares: Figures = {}
    if last.entropy is not None and last.dynamics is not None:
        shares = {"coupling_entropy": last.entropy.mean, "coupling_std": last.dynamics.mean}
    return shares | {"diagnosis": found.to_dict()}


@register_measure()
def robustness(trained: Trained) -> Figures:
    """Affine changes, attacks through the gradient, detection by reconstruction, and images of no class."""
    if not trained.one_class:
        return {}
    some, model = trained.some(), trained.model
    images, labels = some.float_images(), some.labels
    sweep = evaluation.affine_sweep(
        model,
        images,
        labels,
        rotation=(-60, -45, -30, -15, 15, 30, 45, 60),
        scale=(60, 80, 120, 140),
        shear=(-30, -15, 15, 30),
        shift=(2, 4),
    )
    few, truth = images[:ATTACKED], labels[:ATTACKED]
    attacks = {
        name: evaluation.attack_sweep(model, few, truth, STRENGTHS, attack=name).to_dict()
        for name in ("fgsm", "bim", "pgd")
    }
    inverted = evaluation.reject_by_length(model, images, 1 - images)
    noise = torch.rand(images.shape, generator=torch.Generator().manual_seed(0))
    figures: Figures = {
        "affine_accuracy": mean(
            value for curve in sweep.curves.values() for value in curve.accuracy
        ),
        **{f"{name}_accuracy": found["mean"] for name, found in attacks.items()},
        "auroc_inverted": inverted.auroc,
        "auroc_noise": evaluation.reject_by_length(model, images, noise).auroc,
        "calibration_error": evaluation.evaluate(model, some).calibration.length.error,
        "affine": sweep.to_dict(),
        "attacks": attacks,
    }
    if trained.config.data.name in UNKNOWN:
        other = trained.other(UNKNOWN[trained.config.data.name]).float_images()[:SOME]
        figures["auroc_unknown"] = evaluation.reject_by_length(model, images, other).auroc
    if trained.task.spec.decoder:
        held = trained.held_out().float_images()[:SOME]
        threshold = evaluation.detection_threshold(evaluation.reconstruction_distances(model, held))
        changed = evaluation.pgd(model, few, truth, 0.2)
        found = evaluation.detect_adversarial(model, few, changed, truth, threshold=threshold)
        figures |= {
            "detected": found.detected,
            "undetected": found.undetected,
            "detection": found.to_dict(),
        }
    return figures


@register_measure()
def attack_success(trained: Trained) -> Figures:
    """Share of rightly answered images that an attack turns, one step or ten: to any class, or to the next one.

    The protocol of "Self-Routing Capsule Networks" (NeurIPS 2019), with its strength in pixels and images kept in
    [0, 1]: the authors cut normalized images to [-1, 1], which is an attack by itself.
    """
    if not trained.one_class:
        return {}
    some, model = trained.some(), trained.model
    images, labels = some.float_images(), some.labels
    right = right_answers(model, images, labels)
    if not right.any():
        return {}
    images, labels = images[right], labels[right]
    goals = {
        "": (labels, likelihood),
        "targeted_": ((labels + 1) % some.num_classes, lambda a, t: -likelihood(a, t)),
    }
    figures: Figures = {}
    for kind, (goal, loss) in goals.items():
        for name, steps in (("fgsm", 1), ("bim", 10)):
            changed = evaluation.bim(model, images, goal, TURN, steps=steps, loss=loss)
            there = right_answers(model, changed, goal).double().mean().item()
            figures[f"{kind}{name}_success"] = there if kind else 1 - there
    return figures


def likelihood(activation: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of activations taken as shares: what a network of them is trained with."""
    return nn.functional.cross_entropy(
        activation.clamp(min=torch.finfo(activation.dtype).tiny).log(), labels
    )


@register_measure()
def validation(trained: Trained) -> Figures:
    """The score on the images that the model was chosen with; of an accuracy, the error."""
    score = trained.task.score
    value = trained.task.compute_metrics(trained.task.eval_outputs(trained.held_out()))[score]
    return (
        {"validation_error": 1 - value} if score == "accuracy" else {f"validation_{score}": value}
    )


@register_measure()
def products(trained: Trained) -> Figures:
    """Multiply-adds of matrix products and convolutions that one image takes, by the reference of every operator."""
    plain = deepcopy(trained.model)
    layers: list[Any] = list(plain.modules())
    for layer in layers:
        if "reference" in (
            impl for op in getattr(layer, "operators", ()) for impl in ops.implementations(op)
        ):
            layer.impl = "reference"
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        plain(trained.images.float_images([0]).to(next(plain.parameters()).device))
    return {"products": counter.get_total_flops() // 2}


def finished(run: Run, config: TrainConfig) -> Trained:
    """A run whose training is done, with its test images."""
    return Trained(
        run, config, *open_run(run.path, root=config.data.root, device=config.training.device)
    )

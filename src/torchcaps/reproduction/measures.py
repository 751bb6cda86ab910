"""What an experiment measures beside the test images of its own data set: one function a measure, by name.

Every figure is a plain number; shares, accuracies and errors are in [0, 1].
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from torchcaps import evaluation, ops
from torchcaps.data import PairSet
from torchcaps.errors import AblationUnsupportedError, DatasetNotFoundError
from torchcaps.evaluation.forward import proportion, right_answers
from torchcaps.registry import Registry
from torchcaps.reporting import EvaluatedRun, evaluate
from torchcaps.training import load

# Data set -> one of the same size and other classes.
UNKNOWN = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}
SUBSET = 512  # test images that slow measures look at
ABLATED = 10_000  # all of most sets, for the figure stands beside the error on all
CURVE = 2048  # of each side of a viewpoint set, after every epoch
ATTACKED = 200
STRENGTHS = (0.05, 0.1, 0.2, 0.3)  # of attacks, on pixels in [0, 1]
DETECTED_STRENGTH = 0.2
TURN = 0.02  # the strength 0.1 of Hahn et al. on CIFAR-10, which they divided by its deviation


Figures = dict[str, Any]
Measure = Callable[[EvaluatedRun], Figures]
MEASURES: Registry[Measure] = Registry("measure")
# A recipe names it among its `measures`. It returns no figures where the task or the model cannot be measured so.
register_measure = MEASURES.register


@register_measure()
def segmentation(run: EvaluatedRun) -> Figures:
    """Composites taken apart: each labeled capsule decoded alone, against the single images; and an absent one.

    `ink_absent` is the mean brightness of a class that is not there, over that of the labeled ones.
    """
    pairs = run.subset(SUBSET)
    if not isinstance(pairs, PairSet) or not run.task.spec.decoder:
        return {}
    singles = pairs.singles(torch.arange(len(pairs)))
    images, labels = pairs.float_images(), pairs.labels
    singles = singles.float() / 255 if singles.dtype == torch.uint8 else singles
    drawn = evaluation.segment(run.model, images, labels)
    scores = evaluation.score_segmentation(drawn.images, singles)
    # The next class that is neither of the two.
    absent = (labels + 1) % pairs.num_classes
    absent = torch.where((absent == labels.flip(1)), (absent + 1) % pairs.num_classes, absent)
    blank = evaluation.segment(run.model, images, absent).images
    return {
        "iou": scores.iou,
        "ink_right": scores.ink_right,
        "correlation": scores.correlation,
        "pixel_mse": scores.error,
        "ink_absent": float(blank.mean() / drawn.images.mean()),
    }


@register_measure()
def placed(run: EvaluatedRun) -> Figures:
    """Error on digits at random places, which the experiment compares models at equal values of: its "clean" error."""
    if not run.has_one_class:
        return {}
    return {
        "clean_error": run.error(
            run.load_images(f"placed-{run.config.data.name.removeprefix('affine-')}")
        )
    }


@register_measure()
def affnist(run: EvaluatedRun) -> Figures:
    """Error on affNIST's own test images, where that set is at hand; nothing of it where it is not."""
    if not run.has_one_class:
        return {}
    try:
        return {"affnist_error": run.error(run.load_images("affnist"))}
    except DatasetNotFoundError:
        return {}


@register_measure()
def viewpoints(run: EvaluatedRun) -> Figures:
    """Errors on familiar and on novel views; and, on some of each, after every epoch whose model was kept."""
    if not run.has_one_class:
        return {}
    familiar = run.load_images(f"{run.config.data.name}-familiar")
    figures: Figures = {
        "familiar_error": run.error(familiar),
        "novel_error": run.error(run.images),
    }
    epochs = range(1, run.config.training.epochs + 1)
    paths = [run.run.epoch_model_path(epoch) for epoch in epochs]
    models = [load(path) for path in paths if path.exists()]
    if models:
        subsets = {
            "familiar": replace(run, images=familiar).subset(CURVE),
            "novel": run.subset(CURVE),
        }
        figures["curve"] = {
            name: [evaluate(model, subset).to_dict()["accuracy"] for model in models]
            for name, subset in subsets.items()
        }
    return figures


@register_measure()
def ablation(run: EvaluatedRun) -> Figures:
    """The trained model with uniform and with random couplings at test time."""
    if not run.has_routing:
        return {}
    subset = run.subset(ABLATED)
    try:
        result = evaluation.routing_ablation(run.model, subset.float_images(), subset.labels)
    except AblationUnsupportedError:
        return {}
    return {"uniform_at_test_error": 1 - result.uniform, "changed_by_routing": result.changed}


@register_measure()
def diagnostics(run: EvaluatedRun) -> Figures:
    """Every measure of routing (docs/diagnostics.md); the table shows couplings and dead capsules of the last layer."""
    if not run.has_routing:
        return {}
    diagnosis = evaluation.diagnose(run.model, run.images)
    last = diagnosis.layers[-1]
    figures: Figures = {"diagnosis": diagnosis.to_dict()}
    if last.entropy is not None and last.dynamics is not None:
        figures["coupling_entropy"] = last.entropy.mean
        figures["coupling_std"] = last.dynamics.mean
    return figures


@register_measure()
def robustness(run: EvaluatedRun) -> Figures:
    """Affine changes, attacks through the gradient, detection by reconstruction, and images of no class."""
    if not run.has_one_class:
        return {}
    subset = run.subset(SUBSET)
    images, labels = subset.float_images(), subset.labels
    return {
        **_affine(run.model, images, labels),
        **_attacks(run.model, images[:ATTACKED], labels[:ATTACKED]),
        **_rejection(run, images),
        "calibration_error": run.task.evaluate(subset).to_dict()["calibration_error"],
        **_detection(run, images[:ATTACKED], labels[:ATTACKED]),
    }


def _affine(model: nn.Module, images: Tensor, labels: Tensor) -> Figures:
    sweep = evaluation.affine_sweep(
        model,
        images,
        labels,
        rotation=(-60, -45, -30, -15, 15, 30, 45, 60),
        scale=(60, 80, 120, 140),
        shear=(-30, -15, 15, 30),
        shift=(2, 4),
    )
    accuracies = [value for curve in sweep.curves.values() for value in curve.accuracy]
    return {"affine_accuracy": mean(accuracies), "affine": sweep.to_dict()}


def _attacks(model: nn.Module, images: Tensor, labels: Tensor) -> Figures:
    sweeps = {
        name: evaluation.attack_sweep(model, images, labels, STRENGTHS, attack=name)
        for name in ("fgsm", "bim", "pgd")
    }
    means = {f"{name}_accuracy": sweep.mean for name, sweep in sweeps.items()}
    return means | {"attacks": {name: sweep.to_dict() for name, sweep in sweeps.items()}}


def _rejection(run: EvaluatedRun, images: Tensor) -> Figures:
    """How well lengths tell known images from inverted ones, from noise, and from another data set."""
    generator = torch.Generator().manual_seed(0)
    strangers = {"inverted": 1 - images, "noise": torch.rand(images.shape, generator=generator)}
    if run.config.data.name in UNKNOWN:
        unknown = run.load_images(UNKNOWN[run.config.data.name])
        strangers["unknown"] = unknown.float_images()[:SUBSET]
    return {
        f"auroc_{name}": evaluation.reject_by_length(run.model, images, others).auroc
        for name, others in strangers.items()
    }


def _detection(run: EvaluatedRun, images: Tensor, labels: Tensor) -> Figures:
    if not run.task.spec.decoder:
        return {}
    held_out = run.held_out_images().float_images()[:SUBSET]
    distances = evaluation.reconstruction_distances(run.model, held_out)
    detection = evaluation.detect_adversarial(
        run.model,
        images,
        evaluation.pgd(run.model, images, labels, DETECTED_STRENGTH),
        labels,
        threshold=evaluation.detection_threshold(distances),
    )
    return {
        "detected": detection.detected,
        "undetected": detection.undetected,
        "detection": detection.to_dict(),
    }


@register_measure()
def attack_success(run: EvaluatedRun) -> Figures:
    """Share of rightly answered images that an attack turns, one step or ten: to any class, or to the next one.

    The protocol of "Self-Routing Capsule Networks" (NeurIPS 2019), with its strength in pixels and images kept in
    [0, 1]: the authors cut normalized images to [-1, 1], which is an attack by itself.
    """
    if not run.has_one_class:
        return {}
    subset, model = run.subset(SUBSET), run.model
    images, labels = subset.float_images(), subset.labels
    correct = right_answers(model, images, labels)
    if not correct.any():
        return {}
    images, labels = images[correct], labels[correct]
    next_class = (labels + 1) % subset.num_classes
    figures: Figures = {}
    for name, steps in (("fgsm", 1), ("bim", 10)):
        away = evaluation.bim(model, images, labels, TURN, steps=steps, loss=likelihood)
        figures[f"{name}_success"] = 1 - proportion(right_answers(model, away, labels))
        towards = evaluation.bim(
            model, images, next_class, TURN, steps=steps, loss=lambda a, t: -likelihood(a, t)
        )
        figures[f"targeted_{name}_success"] = proportion(right_answers(model, towards, next_class))
    return figures


def likelihood(activation: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of activations taken as shares: what a network of them is run with."""
    return nn.functional.cross_entropy(
        activation.clamp(min=torch.finfo(activation.dtype).tiny).log(), labels
    )


@register_measure()
def validation(run: EvaluatedRun) -> Figures:
    """The score on the images that the model was chosen with; of an accuracy, the error."""
    score = run.task.score
    value = run.task.compute_metrics(run.task.eval_outputs(run.held_out_images()))[score]
    return (
        {"validation_error": 1 - value} if score == "accuracy" else {f"validation_{score}": value}
    )


@register_measure()
def products(run: EvaluatedRun) -> Figures:
    """Multiply-adds of matrix products and convolutions that one image takes, by the reference of every operator."""
    plain = deepcopy(run.model)
    layers: list[Any] = list(plain.modules())
    for layer in layers:
        if "reference" in (
            impl for op in getattr(layer, "operators", ()) for impl in ops.implementations(op)
        ):
            layer.impl = "reference"
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        plain(run.images.float_images([0]).to(next(plain.parameters()).device))
    return {"products": counter.get_total_flops() // 2}

"""What an experiment measures beside the test images of its data set: one function a measure.

Every figure is a plain number; shares, accuracies and errors are in [0, 1].
"""

from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from statistics import mean

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from torchcaps import evaluation, load, set_impl
from torchcaps.data import Dataset, PairMaker
from torchcaps.errors import AblationUnsupportedError, ArgumentError, DatasetNotFoundError
from torchcaps.evaluation.base import device_of, proportion, right_answers
from torchcaps.registry import Registry
from torchcaps.reporting import EvaluatedRun, evaluate
from torchcaps.tasks import eval_outputs, evaluate_task
from torchcaps.training.run import epoch_model_path
from torchcaps.types import Json

# Data set -> one of the same size and other classes.
UNKNOWN_SETS = {"mnist": "fashion-mnist", "fashion-mnist": "mnist"}
NUM_SUBSET = 512  # test images of slow measures
NUM_ABLATED = 10_000  # all of most sets, because the figure stands beside the error on all
NUM_CURVE = 2048  # of each side of a viewpoint set, after every epoch
NUM_ATTACKED = 200
STRENGTHS = (0.05, 0.1, 0.2, 0.3)  # of attacks, on pixels in [0, 1]
DETECTED_STRENGTH = 0.2
# The strength 0.1 of Hahn et al. on CIFAR-10, whose pixels they divided by the deviation.
SUCCESS_STRENGTH = 0.02

Figures = Json
Measure = Callable[[EvaluatedRun], Figures]
MEASURES: Registry[Measure] = Registry("measure")
# Decorator: a recipe names the function among its `measures`. It returns no figures where the task
# or the model cannot be measured so.
register_measure = MEASURES.register


@register_measure()
def segmentation(run: EvaluatedRun) -> Figures:
    """Composites taken apart: each labeled capsule is decoded alone, and so is an absent one.

    Returns:
        "iou", "ink_right", "correlation" and "pixel_mse" of the drawings and the single images;
        "ink_absent": mean brightness of a class that is not in the image, over that of the labeled
        ones.
    """
    pairs = run.subset(NUM_SUBSET)
    maker = pairs.maker
    if not isinstance(maker, PairMaker) or not run.task.spec.decoder:
        return {}
    singles = maker.singles(pairs, torch.arange(len(pairs)))
    images = pairs.float_images()
    labels = pairs.targets["single_label"]
    if singles.dtype == torch.uint8:
        singles = singles.float() / 255
    segments = evaluation.segment(run.model, images, labels)
    scores = evaluation.score_segmentation(segments.images, singles)

    # The next class that is neither of the two.
    absent = (labels + 1) % pairs.num_classes
    absent = torch.where(absent == labels.flip(1), (absent + 1) % pairs.num_classes, absent)
    blank = evaluation.segment(run.model, images, absent).images
    return {
        "iou": scores.iou,
        "ink_right": scores.ink_right,
        "correlation": scores.correlation,
        "pixel_mse": scores.error,
        "ink_absent": float(blank.mean() / segments.images.mean()),
    }


@register_measure()
def placed(run: EvaluatedRun) -> Figures:
    """Error on untransformed digits at random places.

    The experiment compares models of equal "clean" error.
    """
    if not run.has_one_class:
        return {}
    name = run.config.data.name.removeprefix("affine-")
    return {"clean_error": _error(run, run.load_images(f"placed-{name}"))}


@register_measure()
def affnist(run: EvaluatedRun) -> Figures:
    """Error on affNIST's own test images; no figure where that set is not at hand."""
    if not run.has_one_class:
        return {}
    try:
        images = run.load_images("affnist")
    except DatasetNotFoundError:
        return {}
    return {"affnist_error": _error(run, images)}


@register_measure()
def viewpoints(run: EvaluatedRun) -> Figures:
    """Errors on familiar and on novel views.

    Where the models of all epochs were kept, "curve" has the accuracies of each on a part of both.
    """
    if not run.has_one_class:
        return {}
    familiar = run.load_images(f"{run.config.data.name}-familiar")
    figures: Figures = {
        "familiar_error": _error(run, familiar),
        "novel_error": _error(run, run.images),
    }
    if models := epoch_models(run):
        subsets = {
            "familiar": replace(run, images=familiar).subset(NUM_CURVE),
            "novel": run.subset(NUM_CURVE),
        }
        figures["curve"] = {
            name: [evaluate(model, subset).to_dict()["accuracy"] for model in models]
            for name, subset in subsets.items()
        }
    return figures


def epoch_models(run: EvaluatedRun) -> list[nn.Module]:
    """The models of all epochs that a run has kept."""
    epochs = range(1, run.config.training.epochs + 1)
    paths = [epoch_model_path(run.run, epoch) for epoch in epochs]
    return [load(path) for path in paths if path.exists()]


def _error(run: EvaluatedRun, images: Dataset) -> float:
    """Share of these images that are wrong."""
    return float(evaluate_task(run.task, images).to_dict()["error"])


@register_measure()
def ablation(run: EvaluatedRun) -> Figures:
    """The trained model with uniform couplings at test time."""
    if not (run.has_one_class and run.task.spec.pose):
        return {}
    subset = run.subset(NUM_ABLATED)
    try:
        routed = evaluation.routing_ablation(run.model, subset.float_images(), subset.labels)
    except AblationUnsupportedError:
        return {}
    return {"uniform_at_test_error": 1 - routed.uniform, "changed_by_routing": routed.changed}


@register_measure()
def diagnostics(run: EvaluatedRun) -> Figures:
    """Every measure of routing (docs/diagnostics.md), and couplings of the last layer."""
    if not (run.has_one_class and run.task.spec.pose):
        return {}
    diagnosis = evaluation.diagnose(run.model, run.images)
    figures: Figures = {"diagnosis": diagnosis.to_dict()}
    last_layer = diagnosis.layers[-1]
    if last_layer.entropy is not None and last_layer.dynamics is not None:
        figures["coupling_entropy"] = last_layer.entropy.mean
        figures["straightness"] = diagnosis.iterations.straightness[last_layer.name][-1]
        figures["coupling_std"] = last_layer.dynamics.mean
    return figures


@register_measure()
def robustness(run: EvaluatedRun) -> Figures:
    """Affine changes, attacks, detection by reconstruction, and images of no class."""
    if not run.has_one_class:
        return {}
    subset = run.subset(NUM_SUBSET)
    images = subset.float_images()
    labels = subset.labels
    attacked = (images[:NUM_ATTACKED], labels[:NUM_ATTACKED])
    # Rotations and shears in degrees, scales in percent, shifts in pixels.
    sweep = evaluation.affine_sweep(
        run.model,
        images,
        labels,
        rotation=(-60, -45, -30, -15, 15, 30, 45, 60),
        scale=(60, 80, 120, 140),
        shear=(-30, -15, 15, 30),
        shift=(2, 4),
    )
    accuracies = [share for curve in sweep.curves.values() for share in curve.accuracy]
    figures: Figures = {}
    attacks = {}
    for name in ("fgsm", "bim", "pgd"):  # through the gradient
        attack = evaluation.attack_sweep(run.model, *attacked, STRENGTHS, attack=name)
        figures[f"{name}_accuracy"] = attack.mean
        attacks[name] = attack.to_dict()
    return {
        "affine_accuracy": mean(accuracies),
        "affine": sweep.to_dict(),
        "attacks": attacks,
        **figures,
        **_rejection(run, images),
        "calibration_error": evaluate_task(run.task, subset).to_dict()["calibration_error"],
        **_detection(run, *attacked),
    }


def _rejection(run: EvaluatedRun, images: Tensor) -> Figures:
    """How well lengths tell images of the set from inverted ones, noise and another set."""
    generator = torch.Generator().manual_seed(0)
    strangers = {"inverted": 1 - images, "noise": torch.rand(images.shape, generator=generator)}
    if unknown := UNKNOWN_SETS.get(run.config.data.name):
        strangers["unknown"] = run.load_images(unknown).float_images()[:NUM_SUBSET]
    return {
        f"auroc_{name}": evaluation.reject_by_length(run.model, images, outliers).auroc
        for name, outliers in strangers.items()
    }


def _detection(run: EvaluatedRun, images: Tensor, labels: Tensor) -> Figures:
    """Share of attacked images that their reconstruction gives away."""
    if not run.task.spec.decoder:
        return {}
    clean_images = run.held_out_images().float_images()[:NUM_SUBSET]
    distances = evaluation.reconstruction_distances(run.model, clean_images)
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
    """Share of correctly classified images that an attack turns, in one step or ten.

    Untargeted attacks turn them to any class, targeted ones to the next. The protocol of
    "Self-Routing Capsule Networks" (NeurIPS 2019), with its strength in pixels and images kept in
    [0, 1]: the authors cut normalized images to [-1, 1], which is an attack by itself.
    """
    if not run.has_one_class:
        return {}
    model = run.model
    subset = run.subset(NUM_SUBSET)
    images = subset.float_images()
    labels = subset.labels
    is_correct = right_answers(model, images, labels)
    if not is_correct.any():
        return {}
    images = images[is_correct]
    labels = labels[is_correct]
    targets = (labels + 1) % subset.num_classes
    figures: Figures = {}
    for name, steps in (("fgsm", 1), ("bim", 10)):
        attack = partial(evaluation.bim, model, images, eps=SUCCESS_STRENGTH, steps=steps)
        untargeted = attack(labels=labels, loss=_cross_entropy)
        figures[f"{name}_success"] = 1 - proportion(right_answers(model, untargeted, labels))
        targeted = attack(labels=targets, loss=lambda *outputs: -_cross_entropy(*outputs))
        figures[f"targeted_{name}_success"] = proportion(right_answers(model, targeted, targets))
    return figures


def _cross_entropy(activation: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of activations `[batch, classes]` that are taken as probabilities."""
    smallest = torch.finfo(activation.dtype).tiny
    return nn.functional.cross_entropy(activation.clamp(min=smallest).log(), labels)


@register_measure()
def validation(run: EvaluatedRun) -> Figures:
    """The score on the images that the model was chosen with; of an accuracy, the error."""
    name = run.task.score
    score = run.task.compute_metrics(eval_outputs(run.task, run.held_out_images()))[name]
    return {"validation_error": 1 - score} if name == "accuracy" else {f"validation_{name}": score}


@register_measure()
def products(run: EvaluatedRun) -> Figures:
    """Multiply-adds of matrix products and convolutions that one image takes.

    Operators of the library are counted by their references.
    """
    model = deepcopy(run.model)
    with suppress(ArgumentError):  # no layer has operators of the library
        set_impl(model, "reference")
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        model(run.images.float_images([0]).to(device_of(model)))
    return {"products": counter.get_total_flops() // 2}

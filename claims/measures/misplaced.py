"""Claim: a capsule network rejects a face whose parts are misplaced, a CNN accepts it."""

import math
from statistics import mean

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, normalize

from claims.measures.scores import Scores, class_scores
from claims.sets.faces import CLASSES, MISPLACED, render_faces
from torchcaps.data import Dataset
from torchcaps.evaluation import auroc, coupling_entropy, route_images
from torchcaps.evaluation.base import Images, Labels
from torchcaps.nn import RoutedLayer
from torchcaps.reporting import EvaluatedRun
from torchcaps.reproduction.measures import Figures, register_measure
from torchcaps.types import spec_of

NUM_IMAGES = 2000  # of each kind
NUM_ROUTED = 64  # images whose couplings are measured
NUM_REFERENCES = 8000  # the training images of "faces"
SEED = 1  # of the test images
KINDS = (*MISPLACED, "upside-down", "scrambled")
DISTANCES = (15, 25, 35, 64)  # upper ends of the ranges of a moved part, in pixels
BLUR = 4  # pixels along the windows of the mean of a blurred image
RECALL = 0.95


@register_measure()
def misplaced_parts(run: EvaluatedRun) -> Figures:
    """Scores of whole objects against those of objects with misplaced parts.

    Returns:
        See `misplaced_figures`.
    """
    return misplaced_figures(run.model)


def misplaced_figures(model: nn.Module, count: int = NUM_IMAGES) -> Figures:
    """Scores of whole objects against those of objects with misplaced parts.

    The score of an image is that of the object whose parts it shows.

    Args:
        model: with the four objects as its first classes.
        count: of images of each kind, a multiple of 4.

    Returns:
        "auroc_KIND": area under the ROC curve, whole against each kind, a mean over objects;
        "auroc_misplaced": mean over swapped, turned, foreign and moved parts; "accepted_KIND":
        share of images whose probability is above one half; "limits": of each object, the score
        above which 95 % of whole ones are; "accepted_95_KIND": share of images above it;
        "accepted_95_by_distance": of moved parts, by distance; "coupling_entropy" of the last
        routed layer, 1 where couplings are equal.
    """
    whole = render_faces("whole", count, seed=SEED)
    whole_scores = _object_scores(class_scores(model, whole.float_images()), whole)
    half = math.log(0.5) if spec_of(model).logits else 0.5
    limits = [float(scores.quantile(1 - RECALL)) for scores in whole_scores]
    accepted_whole = float((torch.cat(whole_scores) > half).double().mean())
    figures: Figures = {"accepted_whole": accepted_whole, "limits": limits}
    for kind in KINDS:
        images = render_faces(kind, count, seed=SEED)
        scores = _object_scores(class_scores(model, images.float_images()), images)
        figures[f"auroc_{kind}"] = mean_auroc(whole_scores, scores)
        figures[f"accepted_{kind}"] = float((torch.cat(scores) > half).double().mean())
        is_accepted = [part > limit for part, limit in zip(scores, limits, strict=True)]
        figures[f"accepted_95_{kind}"] = float(torch.cat(is_accepted).double().mean())
        if kind == "moved":
            figures["accepted_95_by_distance"] = _by_distance(torch.cat(is_accepted), images)
    figures |= _coupling_entropy(model, whole.subset(range(NUM_ROUTED)))
    figures["auroc_misplaced"] = mean(figures[f"auroc_{kind}"] for kind in MISPLACED)
    return figures


@register_measure()
def misplaced_controls(_run: EvaluatedRun) -> Figures:
    """Scores without a network: the nearest blurred training image, and the amount of ink.

    Returns:
        "nearest_auroc_misplaced": of the largest correlation with a blurred training image of the
        object; "ink_auroc_misplaced": of the sum of all pixels; both as `misplaced_parts`.
    """
    training = render_faces("whole", NUM_REFERENCES, seed=0)
    references = _blurred(training.float_images())
    whole = render_faces("whole", NUM_IMAGES, seed=SEED)
    nearest_areas = []
    ink_areas = []
    whole_nearest = _nearest(whole, references, training.labels)
    for kind in MISPLACED:
        images = render_faces(kind, NUM_IMAGES, seed=SEED)
        nearest = _nearest(images, references, training.labels)
        nearest_areas.append(mean_auroc(whole_nearest, nearest))
        ink_areas.append(mean_auroc(_ink(whole), _ink(images)))
    return {
        "nearest_auroc_misplaced": mean(nearest_areas),
        "ink_auroc_misplaced": mean(ink_areas),
    }


def _coupling_entropy(model: nn.Module, images: Dataset) -> Figures:
    """Entropy of the couplings of the last routed layer; nothing where nothing is routed."""
    if not any(isinstance(module, RoutedLayer) for module in model.modules()):
        return {}
    *_, trace = route_images(model, images.float_images()).layers.values()
    return {"coupling_entropy": coupling_entropy(trace).mean}


def mean_auroc(whole: list[Tensor], misplaced: list[Tensor]) -> float:
    """Mean over objects of the area under the ROC curve; scores `[n]` of each object."""
    return mean(auroc(right, wrong) for right, wrong in zip(whole, misplaced, strict=True))


def _object_scores(scores: Scores, images: Dataset) -> list[Tensor]:
    """The scores of each object's images for that object."""
    return [scores[images.labels == label, label] for label in range(len(CLASSES))]


def _by_distance(is_accepted: Bool[Tensor, " n"], images: Dataset) -> list[float]:
    """Share of images that are accepted, by the distance of the moved part."""
    order = [torch.nonzero(images.labels == label).flatten() for label in range(len(CLASSES))]
    distances = images.targets["distance"][torch.cat(order)]
    limits = torch.tensor(DISTANCES)
    ranges = torch.bucketize(distances, limits, right=False)
    return [float(is_accepted[ranges == k].double().mean()) for k in range(len(limits))]


def _blurred(images: Images) -> Float[Tensor, "n pixels"]:
    """Blurred images of mean 0 and norm 1."""
    pixels = avg_pool2d(images, BLUR, BLUR // 2).flatten(1)
    return normalize(pixels - pixels.mean(dim=1, keepdim=True), dim=1)


def _nearest(images: Dataset, references: Tensor, labels: Labels) -> list[Tensor]:
    """The largest correlation of each object's images with a training image of the object."""
    blurred = _blurred(images.float_images())
    scores = []
    for label in range(len(CLASSES)):
        correlations = blurred[images.labels == label] @ references[labels == label].T
        scores.append(correlations.amax(dim=1))
    return scores


def _ink(images: Dataset) -> list[Tensor]:
    """The sum of the pixels of each object's images."""
    ink = images.float_images().sum(dim=(1, 2, 3))
    return [ink[images.labels == label] for label in range(len(CLASSES))]

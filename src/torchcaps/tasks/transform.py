"""Training of transforming auto-encoders: draw an image after a known transformation.

Geoffrey Hinton, Alex Krizhevsky, Sida Wang, "Transforming Auto-encoders", ICANN 2011.

In: images without labels. Two random views are made of each image, the source and the target: both
are transformed from the original image. If the source were the original itself, all sources would
look alike, and poses need not depend on them. The model sees the source and the transformation that
leads to the target. Out: the squared error of the target that it draws; and metrics of how well the
changes of its poses follow the transformations (`tasks.pose_changes`). Steps return `Outputs`,
tensors by name.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from torchcaps.data import Batch, Dataset, Transforms
from torchcaps.errors import ArgumentError, check_known, check_range
from torchcaps.evaluation.base import EvaluationResult
from torchcaps.functional import move_by_matrix
from torchcaps.functional.bounds import without_autocast
from torchcaps.models import TransformedPairs
from torchcaps.models.transforming_autoencoder import Pose
from torchcaps.tasks._base import (
    Outputs,
    Predictions,
    ReportItem,
    Task,
    drawing_error,
    first_batch,
    register_task,
)
from torchcaps.tasks.pose_changes import (
    TransformingEvaluation,
    compare_pairs,
    estimated_transformations,
    fit_line,
    measure_pairs,
)
from torchcaps.transfer import evaluating, to_device
from torchcaps.types import ModelSpec
from torchcaps.words import rounded

Images = Float[Tensor, "batch channels height width"]
Matrices = Float[Tensor, "batch 3 3"]
SHIFT = 2  # largest shift of a view in pixels
# Largest changes of a view beside its shift, for affine poses; see `transformed_pairs`.
CHANGES = {"degrees": 20.0, "zoom": 0.15, "shear": 0.1}
MAX_ZOOM = 0.9
SEED = 99  # of the views of test images
MAX_CAPSULES = 5  # in a prediction
# In a report: pairs drawn, capsules drawn, units of each, and points.
MAX_PAIRS = 14
MAX_DRAWN_CAPSULES = 10
MAX_UNITS = 20
MAX_POINTS = 2000


@register_task("transform")
class Transform(Task):
    """Pairs of views of an image: the model draws the second one by the first one.

    Attributes:
        ranges: largest "shift" in pixels, "degrees", "zoom" and "shear" of a view.
        transforms: other augmentations of the original images.
    """

    # Answers to the questions of the base class `Task`:
    # The metric by which the epoch is chosen: how well poses tell the transformation. The error of
    # the drawing also falls where more and more capsules learn images by heart, and it has no
    # largest number, such as 1, at which a training may stop.
    score = "correlation"
    losses = ("reconstruction",)  # names of its losses
    capabilities = frozenset({"decode", "sweep"})  # drawings of poses, answers to a moving image
    labeled = False
    clip = 0.0  # gradients are not clipped: the loss is a sum over pixels, and so are they
    requires = "a model whose poses a known transformation moves"  # words of the error for others

    def _setup(self, images: Dataset | None) -> None:
        settings = self.config.augmentation
        self.ranges = {name: getattr(settings, name) for name in ("shift", *CHANGES)}
        for name in CHANGES:
            if self.model.pose == "translation" and self.ranges[name]:
                raise ArgumentError(
                    name, f"expected 0 for poses that are moved by shifts, got {self.ranges[name]}"
                )
        # The other augmentations change an image before two views are made of it.
        image_settings = replace(settings, **dict.fromkeys(self.ranges, 0))
        self.transforms = Transforms(image_settings, self.config.data.crop)

    @classmethod
    def default_settings(cls, model: Any, spec: ModelSpec, loss: str) -> dict[str, Any]:
        """Settings of a run that leaves them open."""
        changes = {} if model.pose == "translation" else CHANGES
        return {"lr": 2e-3, "schedule": "cosine", "shift": SHIFT, **changes}

    def eval_targets(self, images: Dataset) -> dict[str, Tensor]:
        """Matrices of two views of each image, the same whatever other images are in the batch."""
        first, second = _random_views(
            images.img_size, len(images), self.ranges, Generator().manual_seed(SEED)
        )
        return {"first": first, "second": second}

    def augment(self, batch: Batch, generator: Generator) -> Batch:
        """Pairs of views: the inputs are sources, "target" and "transformation" are targets."""
        originals = batch.inputs
        if self.training:
            originals = self.transforms(batch, generator).inputs
            size = originals.shape[2:]
            first, second = _random_views(size, len(originals), self.ranges, generator)
        else:
            first, second = batch.targets["first"], batch.targets["second"]
        source, target, transformation = _make_pairs(originals, self.model.pose, first, second)
        targets = {"target": target, "transformation": transformation}
        return Batch(source, targets, batch.indices)

    def training_step(self, batch: Batch, fraction_trained: float) -> Outputs:
        """Squared error of the drawing, a sum over pixels and a mean over the batch."""
        pairs = pairs_of(batch)
        capsules = self.model.move(self.model.capsules(pairs.source), pairs.transformation)
        error = drawing_error(self, capsules, pairs.target)
        return {"loss": error, "reconstruction": error}

    def eval_step(self, batch: Batch) -> Outputs:
        """Poses, presences and errors of each pair; see `compare_pairs`."""
        return {
            name: values.float()
            for name, values in compare_pairs(self.model, pairs_of(batch)).items()
        }

    def compute_metrics(self, outputs: Outputs) -> dict[str, float]:
        """The error, and the correlation of estimated and true transformations."""
        correlations, _ = fit_line(outputs["true"].double(), estimated_transformations(outputs))
        return {
            "loss": outputs["pixel_error"].double().mean().item(),
            "correlation": correlations.nan_to_num().mean().item(),
        }

    def evaluation(self, outputs: Outputs, images: Dataset) -> EvaluationResult:
        return measure_pairs(outputs)

    def report_items(self, evaluation: Any, images: Dataset) -> list[ReportItem]:
        with evaluating(self):
            pairs = pairs_of(first_batch(self, images, MAX_PAIRS))
            drawings = self.model(pairs.source, pairs.transformation)
        rows = {"input": pairs.source, "output": drawings, "target": pairs.target}
        pictures = {name: images.float().cpu() for name, images in rows.items()}
        unit = "pixels" if self.model.pose == "translation" else ""
        return _report_items(evaluation, pictures, self.model.strokes().cpu(), unit)

    @torch.inference_mode()
    def predict(self, images: Tensor) -> Predictions:
        rows = []
        columns = (column.float().cpu() for column in self.model.capsules(images))
        for pose, presence in zip(*columns, strict=True):
            order = presence.argsort(descending=True, stable=True)[:MAX_CAPSULES].tolist()
            capsules = [
                {"capsule": k, "presence": float(presence[k]), "pose": pose[k].tolist()}
                for k in order
            ]
            rows.append(
                {"capsule": order[0], "presence": float(presence.max()), "capsules": capsules}
            )
        return rows


def pairs_of(batch: Batch) -> TransformedPairs:
    """A batch of `Transform.augment` as the model's pairs."""
    return TransformedPairs(batch.inputs, batch.targets["target"], batch.targets["transformation"])


def _report_items(
    evaluation: TransformingEvaluation, pictures: dict[str, Tensor], strokes: Tensor, unit: str
) -> list[ReportItem]:
    """Estimated transformations, drawings, and what capsules draw.

    Args:
        evaluation: of test images.
        pictures: sources, drawings and targets of some pairs.
        strokes: of the model.
        unit: of the numbers of a transformation.
    """
    from torchcaps import viz

    figures = evaluation.figures
    names = evaluation.names
    kinds = ("correlation", "slope", "mean_capsule_r2")
    numbers = [(name, *(rounded(figures[f"{kind}_{name}"]) for kind in kinds)) for name in names]
    errors = {
        "the drawing": "pixel",
        "the input as it is": "copy",
        "the input, itself transformed": "moved",
        "the mean of all targets": "mean",
    }
    pairs = (evaluation.true[:MAX_POINTS], evaluation.predicted[:MAX_POINTS])
    units = "What the generation units of the capsules most often present draw"
    capsules = evaluation.presence.argsort(descending=True)[:MAX_DRAWN_CAPSULES]
    return [
        ReportItem(
            "scatter",
            "Do capsules know what was done?",
            "Each image is paired with itself transformed. The capsules, weighted by their "
            "presence in both, say what was done; it is known what was. A correlation and a slope "
            "of 1 would be right. R² is a mean over single capsules.",
            viz.predicted_transformations(*pairs, names=names, unit=unit),
            f"Estimated against true {' and '.join(names)} of each pair, a panel each.",
            ("Number", "Correlation", "Slope", "R² of a capsule"),
            numbers,
        ),
        ReportItem(
            "triplets",
            "What it draws",
            "The network sees the first row and is told the transformation; it draws the second, "
            "and should draw the third.",
            viz.image_rows(pictures, longest=0.8),
            "Test images, what the network draws when told a transformation, and the images so "
            "transformed.",
            ("Beside the target", "Mean squared error per pixel"),
            [(words, f"{figures[f'{name}_mse']:.5f}") for words, name in errors.items()],
        ),
        ReportItem(
            "generation",
            "The capsules",
            f"{figures['capsules_alive']} of {len(evaluation.presence)} capsules are present in "
            f"more than one image of a hundred. Presence changes by "
            f"{figures['presence_change']:.3f} on average when the image is transformed; it ought "
            "to stay. Below, a row for each of those most often present: what its generation units "
            "draw.",
            viz.generation_weights(strokes[capsules, :MAX_UNITS], title=units),
            f"{units}, a row a capsule.",
        ),
    ]


def transformed_pairs(
    images: Images,
    pose: Pose = "translation",
    *,
    shift: int = SHIFT,
    degrees: float = CHANGES["degrees"],
    zoom: float = CHANGES["zoom"],
    shear: float = CHANGES["shear"],
    generator: Generator,
) -> TransformedPairs:
    """Two random views of each image, and the transformation from the first to the second.

    Each view is sampled once, from the original; zero fills what comes from outside.

    Args:
        images: in [0, 1].
        pose: "translation": whole shifts alone; "affine": shear, zoom and rotation about the
            center, then a shift.
        shift: largest shift of a view in pixels per axis; two views differ by up to twice as much.
        degrees: largest rotation of an affine view either way.
        zoom: largest change of its size either way, as a fraction up to 0.9.
        shear: largest shear of its rows either way: pixels to the side for each pixel down.
        generator: where the views are drawn from; it may be on the CPU for images elsewhere.

    Raises:
        ValueError: images of other axes, an unknown pose, or a range below 0.
    """
    check_known("pose", pose, Pose)
    ranges = {"shift": shift, "degrees": degrees, "zoom": zoom, "shear": shear}
    for name, limit in ranges.items():
        check_range(name, limit, low=0, high=MAX_ZOOM if name == "zoom" else None)
    if pose == "translation":
        ranges |= dict.fromkeys(CHANGES, 0.0)
    return _make_pairs(
        images, pose, *_random_views(images.shape[2:], len(images), ranges, generator)
    )


def _make_pairs(images: Images, pose: Pose, first: Matrices, second: Matrices) -> TransformedPairs:
    """Two views of images, and the transformation from the first to the second."""
    if pose == "translation":
        between = ((second - first)[:, :2, 2] * (max(images.shape[2:]) / 2)).round()
    else:
        with without_autocast(first):
            between = second @ torch.linalg.inv(first)
    source = move_by_matrix(images, to_device(first, images))
    target = move_by_matrix(images, to_device(second, images))
    return TransformedPairs(source, target, to_device(between, images))


def _random_views(
    img_size: Sequence[int], count: int, ranges: Mapping[str, float], generator: Generator
) -> tuple[Matrices, Matrices]:
    """Matrices of two views of each of `count` images of this (height, width).

    Each is a shear, a zoom and a rotation, then a shift by whole pixels.

    Args:
        img_size: of the images.
        count: of matrices in each of the two tensors.
        ranges: largest "shift", "degrees", "zoom" and "shear"; all are uniform.
        generator: the matrices are on its device.
    """
    device = generator.device
    shift = int(ranges["shift"])

    def draw() -> Matrices:
        moves = torch.randint(-shift, shift + 1, (count, 2), generator=generator, device=device)
        turn, size, slant = 2 * torch.rand(3, count, generator=generator, device=device) - 1
        angle = turn * math.radians(ranges["degrees"])
        scale = 1 + size * ranges["zoom"]
        shear = slant * ranges["shear"]
        cos = scale * angle.cos()
        sin = scale * angle.sin()
        x, y = moves.T * (2 / max(img_size))
        zero = torch.zeros_like(x)
        rows = [cos, shear * cos - sin, x, sin, shear * sin + cos, y, zero, zero, zero + 1]
        return torch.stack(rows, dim=1).unflatten(1, (3, 3))

    return draw(), draw()

"""Drawing what an image looks like after a known transformation: no labels, but pairs of views of each image.

Geoffrey Hinton, Alex Krizhevsky, Sida Wang, "Transforming Auto-encoders", ICANN 2011. Source AND target are transformed
from the original image; where only the target is, all sources look alike, and poses need not depend on them.
"""

import math
from dataclasses import replace
from types import MappingProxyType
from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from torchcaps.data import ImageSet, Transforms
from torchcaps.errors import ArgumentError, check_known, check_range, check_shape
from torchcaps.evaluation.forward import evaluating
from torchcaps.functional import move_by_matrix, reconstruction_loss
from torchcaps.functional.bounds import without_autocast
from torchcaps.models import TransformedPairs
from torchcaps.models.transforming_autoencoder import Pose
from torchcaps.settings import TrainConfig
from torchcaps.tasks._base import (
    EvaluationResult,
    Outputs,
    ReportItem,
    Task,
    first_batch,
    register_task,
)
from torchcaps.tasks.pose_changes import (
    TransformingEvaluation,
    compare_pairs,
    correlation,
    estimated_transformations,
    measure_pairs,
)
from torchcaps.types import ModelSpec
from torchcaps.words import rounded

Images = Float[Tensor, "batch channels height width"]
Matrices = Float[Tensor, "batch 3 3"]
AXES = ("batch", "channels", "height", "width")
CHANGES = {"degrees": 20.0, "zoom": 0.15, "shear": 0.1}  # of views beside shifts, for affine poses
SEED = 99  # of the pairs that are measured
SHOWN, DRAWN_CAPSULES, MOST_UNITS, MOST_POINTS, MOST_PRESENT = 14, 10, 20, 2000, 5


@register_task("transform")
class Transform(Task):
    """Pairs of views of an image: the model draws the second by the first and the transformation between them."""

    # What the capsules are for: to tell what was done. The error of the drawing also falls where more and more of them
    # draw by heart; and a score of at most 1 can be one to stop at.
    score = "correlation"
    losses = ("reconstruction",)
    defaults = MappingProxyType({"lr": 2e-3, "schedule": "cosine", **CHANGES})
    capabilities = frozenset({"decode", "sweep"})
    labeled = False
    clip = 0.0  # the loss is a sum over pixels, and so are its gradients
    requires = "a model whose poses a known transformation moves"

    def __init__(
        self, model: nn.Module, config: TrainConfig, images: ImageSet | None = None
    ) -> None:
        super().__init__(model, config, images)
        self.pose: Pose = self.model.pose
        changes = self.config.augmentation
        for name in CHANGES if self.pose == "translation" else ():
            if getattr(changes, name):
                raise ArgumentError(
                    name,
                    f"expected 0 for poses that are moved by shifts, got {getattr(changes, name)}",
                )
        self.ranges = {name: getattr(changes, name) for name in ("shift", *CHANGES)}
        # What is left for an image, before there are two views of it.
        image_changes = replace(changes, shift=0, degrees=0.0, zoom=0.0, shear=0.0)
        self.transforms = Transforms(image_changes, self.config.data.crop)

    @classmethod
    def default_settings(cls, model: Any, spec: ModelSpec, loss: str) -> dict[str, Any]:
        return dict.fromkeys(CHANGES, 0.0) if model.pose == "translation" else {}

    def sample_batch(
        self, images: ImageSet, indices: Tensor, generator: Generator
    ) -> TransformedPairs:
        """Pairs of views. Those that are measured are the same whatever other images are in the batch."""
        if not self.training:
            drawn = _random_views(
                len(images), images.img_size, generator=Generator().manual_seed(SEED), **self.ranges
            )
            return _pairs(
                images.float_images(indices), self.pose, *(each[indices.cpu()] for each in drawn)
            )
        originals = images.sample_batch(indices, generator=generator).images
        originals = self.transforms(originals, generator)[0]
        height, width = originals.shape[2:]
        views = _random_views(len(originals), (height, width), generator=generator, **self.ranges)
        return _pairs(originals, self.pose, *views)

    def training_step(self, batch: TransformedPairs, progress: float) -> Outputs:
        error = reconstruction_loss(self.model(batch.source, batch.transformation), batch.target)
        return {"loss": error, "reconstruction": error}

    def eval_step(self, batch: TransformedPairs) -> Outputs:
        return {name: values.float() for name, values in compare_pairs(self.model, batch).items()}

    def compute_metrics(self, outputs: Outputs) -> dict[str, float]:
        estimated = estimated_transformations(outputs)
        return {
            "loss": outputs["error"].double().mean().item(),
            "correlation": correlation(outputs["true"], estimated).nan_to_num().mean().item(),
        }

    def evaluation(self, outputs: Outputs, images: ImageSet) -> EvaluationResult:
        return measure_pairs(outputs)

    def report_items(self, evaluation: Any, images: ImageSet) -> list[ReportItem]:
        return [
            self._poses(evaluation),
            self._drawings(evaluation, images),
            self._capsules(evaluation),
        ]

    @torch.inference_mode()
    def predict(self, images: Tensor) -> list[dict[str, Any]]:
        poses, presences = self.model.capsules(images)
        rows = []
        for pose, presence in zip(poses.float().cpu(), presences.float().cpu(), strict=True):
            order = presence.argsort(descending=True, stable=True)[:MOST_PRESENT].tolist()
            capsules = [
                {"capsule": k, "presence": float(presence[k]), "pose": pose[k].tolist()}
                for k in order
            ]
            first = {name: capsules[0][name] for name in ("capsule", "presence")}
            rows.append(first | {"capsules": capsules})
        return rows

    def _poses(self, evaluation: TransformingEvaluation) -> ReportItem:
        from torchcaps import viz

        unit = "pixels" if self.pose == "translation" else ""
        columns = (evaluation.correlation, evaluation.slope, evaluation.mean_r2)
        return ReportItem(
            "scatter",
            "Do capsules know what was done?",
            "Each image is paired with itself transformed. The capsules, weighted by their presence in both, say what "
            "was done; it is known what was. A correlation and a slope of 1 would be right. R² is a mean over single "
            "capsules.",
            viz.predicted_transformations(
                evaluation.true[:MOST_POINTS],
                evaluation.predicted[:MOST_POINTS],
                names=evaluation.names,
                unit=unit,
            ),
            f"Estimated against true {' and '.join(evaluation.names)} of each pair, a panel each.",
            ("Number", "Correlation", "Slope", "R² of a capsule"),
            tuple(
                (name, *(rounded(column[name]) for column in columns)) for name in evaluation.names
            ),
        )

    def _drawings(self, evaluation: TransformingEvaluation, images: ImageSet) -> ReportItem:
        from torchcaps import viz

        with evaluating(self):
            pairs = first_batch(self, images, SHOWN)
            drawn = self.model(pairs.source, pairs.transformation)
        errors = {
            "the drawing": evaluation.error,
            "the input as it is": evaluation.copy_error,
            "the input, itself transformed": evaluation.moved_error,
            "the mean of all targets": evaluation.mean_error,
        }
        return ReportItem(
            "triplets",
            "What it draws",
            "The network sees the first row and is told the transformation; it draws the second, and should draw the "
            "third.",
            viz.transformed(*(x.float().cpu() for x in (pairs.source, drawn, pairs.target))),
            "Test images, what the network draws when told a transformation, and the images so transformed.",
            ("Beside the target", "Mean squared error per pixel"),
            tuple((name, f"{error:.5f}") for name, error in errors.items()),
        )

    def _capsules(self, evaluation: TransformingEvaluation) -> ReportItem:
        from torchcaps import viz

        strokes = self.model.strokes().cpu()
        often = evaluation.presence.argsort(descending=True)[:DRAWN_CAPSULES]
        title = "what the generation units of the capsules most often present draw"
        figure = viz.generation_weights(strokes[often, :MOST_UNITS], title=title)
        return ReportItem(
            "generation",
            "The capsules",
            f"{evaluation.alive} of {len(evaluation.presence)} capsules are present in more than one "
            f"image of a hundred. Presence changes by {evaluation.presence_change:.3f} on average "
            "when the image is transformed; it ought to stay. "
            "Below, a row for each of those most often present: what its generation units draw.",
            figure,
            "What the generation units of the capsules most often present draw, a row a capsule.",
        )


def transformed_pairs(
    images: Images,
    pose: Pose = "translation",
    *,
    shift: int = 2,
    degrees: float = CHANGES["degrees"],
    zoom: float = CHANGES["zoom"],
    shear: float = CHANGES["shear"],
    generator: Generator,
) -> TransformedPairs:
    """Two random views of each image, and the transformation from the first to the second.

    Args:
        images: in [0, 1].
        pose: "translation": whole shifts alone; "affine": shear, zoom and rotation about the center, then a shift.
        shift: largest shift of a view in pixels per axis; two views differ by up to twice as much.
        degrees: largest rotation of an affine view either way.
        zoom: largest change of its size either way, as a fraction up to 0.9.
        shear: largest shear of its rows either way: pixels to the side for each pixel down.
        generator: where the views are drawn from; it may be on the CPU for images elsewhere.

    Each view is sampled once, from the original; zero fills what comes from outside. ValueError for images of other
    axes, an unknown pose, or a range below 0.
    """
    check_shape("images", images, AXES)
    for name, value in (("shift", shift), ("degrees", degrees), ("shear", shear)):
        check_range(name, value, low=0)
    check_range("zoom", zoom, low=0, high=0.9)
    check_known("pose", pose, get_args(Pose))
    if pose == "translation":
        degrees = zoom = shear = 0.0
    height, width = images.shape[2:]
    ranges: dict[str, Any] = {"shift": shift, "degrees": degrees, "zoom": zoom, "shear": shear}
    return _pairs(
        images, pose, *_random_views(len(images), (height, width), generator=generator, **ranges)
    )


def _pairs(images: Images, pose: Pose, first: Matrices, second: Matrices) -> TransformedPairs:
    """The views of images that these matrices make, and the transformation from the first to the second."""
    source, target = (move_by_matrix(images, matrices.to(images)) for matrices in (first, second))
    if pose == "translation":
        between = ((second - first)[:, :2, 2] * (max(images.shape[2:]) / 2)).round()
    else:
        with without_autocast(first):
            between = second @ torch.linalg.inv(first)
    return TransformedPairs(source, target, between.to(images))


def _random_views(
    count: int,
    img_size: tuple[int, int],
    *,
    shift: int,
    degrees: float,
    zoom: float,
    shear: float,
    generator: Generator,
) -> tuple[Matrices, Matrices]:
    """For two views each, `[count, 3, 3]`: shear, zoom and rotation drawn uniformly, then a shift by whole pixels."""
    place, both = generator.device, []
    for _ in range(2):
        moves = torch.randint(-shift, shift + 1, (count, 2), generator=generator, device=place)
        turn, size, slant = 2 * torch.rand(3, count, generator=generator, device=place) - 1
        turn, size, slant = turn * math.radians(degrees), 1 + size * zoom, slant * shear
        cos, sin = size * turn.cos(), size * turn.sin()
        matrices = torch.eye(3, device=place).repeat(count, 1, 1)
        matrices[:, 0, 0], matrices[:, 0, 1] = cos, slant * cos - sin
        matrices[:, 1, 0], matrices[:, 1, 1] = sin, slant * sin + cos
        matrices[:, :2, 2] = moves * (2 / max(img_size))
        both.append(matrices)
    return both[0], both[1]

"""Training of canonical capsules: parts and canonical poses of sets of points, without labels.

Weiwei Sun and others, "Canonical Capsules: Self-Supervised Capsules in Canonical Pose", NeurIPS
2021, arXiv 2012.04718; the six losses with the weights of the authors' code.

In: sets of points x_n. A rigid motion of a set makes a view of it: two random views of each set in
training, eight views by motions of a fixed seed in tests. The model's `align` gives for a batch of
views an `Aligned`, with these fields:

    A_nk        `attention`, [batch, points, capsules]: share of point n that capsule k has
    theta_k     `keypoints`, [batch, capsules, dim]: mean place of the points of capsule k,
                weighted by A_nk
    beta_k      `descriptors`, [batch, capsules, channels]: mean features of these points
    theta^_k    `canonical`, [batch, capsules, dim]: where the keypoint should be in the
                canonical pose
    R, t        `rotation`, [batch, dim, dim], and `translation`, [batch, dim]: the motion of the
                view to its canonical pose
    R x_n + t   `upright`, [batch, points, dim]: the points in the canonical pose

The model's `described` gives the keypoints and descriptors of the points in the canonical pose, and
its decoder, `draw`, makes of these a drawing: points [batch, capsules, m, dim], m of each capsule,
that should cover the set in its canonical pose.

Out: a loss in training, a weighted sum of six losses (`capsule_losses`, and the Chamfer distance of
a set and its drawing); and metrics of test sets: above all their steadiness, that is whether all
views of a set get one canonical pose. Steps return `Outputs`, tensors by name.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor

from torchcaps.data import Batch, Dataset
from torchcaps.evaluation.base import EvaluationResult
from torchcaps.functional import chamfer_distance
from torchcaps.functional.bounds import without_autocast
from torchcaps.functional.points import cross_matrix
from torchcaps.functional.squash import full_precision
from torchcaps.models import Aligned
from torchcaps.registry import Registry
from torchcaps.tasks._base import Outputs, Predictions, ReportItem, Task, first_batch, register_task
from torchcaps.transfer import evaluating, to_device, widen

# Weights of the six losses.
WEIGHTS = {
    "equivariance": 5.0,
    "localization": 1.0,
    "equilibrium": 1e-3,
    "invariance": 1.0,
    "canonical": 1.0,
    "chamfer": 1.0,
}
# Weights by the names that the setting `loss` may have.
LOSSES: Registry[Mapping[str, float]] = Registry("loss")
LOSSES.add("weighted", WEIGHTS)
LOSSES.add("without_equivariance", WEIGHTS | {"equivariance": 0.0})
MAX_SHIFT = 0.2  # of a motion, either way along each axis
NUM_VIEWS = 8  # of each test set
SEED = 99  # of the motions of test sets
NUM_EXAMPLES = 4  # sets in a plot
NUM_EXAMPLE_VIEWS = 3  # of each of them
# Least resultant length in the spread, which is infinite for rotations that cancel each other.
MIN_LENGTH = 0.01
EVAL_BATCH = 32  # sets in a batch that is not trained with
MIN_MASS = 1e-3  # least divisor: a capsule may have no points


def view(batch: Batch, index: int) -> Float[Tensor, "batch dim points 1"]:
    """The sets of points after one of their rigid motions `x -> rotation x + shift`, by its index.

    A shift is of the data, to a view; `Aligned.translation` is of the model, to the canonical pose.

    Args:
        batch: points `[batch, dim, points, 1]` with the targets "rotation"
            `[batch, views, dim, dim]` and "shift" `[batch, views, dim]`.
        index: of the motion.
    """
    with without_autocast(batch.inputs):  # on the device of the points
        turned = batch.targets["rotation"][:, index] @ batch.inputs.squeeze(3)
        return (turned + batch.targets["shift"][:, index].unsqueeze(2)).unsqueeze(3)


@register_task("align")
class Align(Task):
    """Capsules that move with a set of points, and put all its views into one canonical pose.

    Attributes:
        model: a `CanonicalCapsules`, or a model with its methods.
        loss: name of the weights in `LOSSES`.
    """

    # Answers to the questions of the base class `Task`:
    # The metric by which the epoch is chosen. A drawing may be good in any pose.
    score = "steadiness"
    losses: ClassVar[Registry[Mapping[str, float]]] = LOSSES
    labeled = False
    augments = False  # there are no augmentations but the motions
    clip = 0.0  # gradients are not clipped, as in the authors' code
    eval_batch_size = EVAL_BATCH
    requires = "a model of sets of points"  # words of the error for other models
    data = "sets of points"  # words of the error for other data

    @classmethod
    def supports(cls, images: Dataset) -> bool:
        """Whether these "images" are sets of points: one pixel wide, coordinates as channels."""
        return images.preprocess.kind == "points"

    def eval_targets(self, images: Dataset) -> dict[str, Tensor]:
        """Eight motions of each set, the same whatever other sets are in the batch."""
        return random_motions(
            len(images), NUM_VIEWS, images.in_chans, Generator().manual_seed(SEED)
        )

    def augment(self, batch: Batch, generator: Generator) -> Batch:
        """In training, the sets with two random motions."""
        if not self.training:
            return batch
        motions = random_motions(len(batch.inputs), 2, batch.inputs.shape[1], generator)
        targets = {name: to_device(motion, batch.inputs) for name, motion in motions.items()}
        return batch._replace(targets=targets)

    def training_step(self, batch: Batch, fraction_trained: float) -> Outputs:
        """The loss of a batch, and the six losses without their weights."""
        return {name: losses.mean() for name, losses in self._losses_by_set(batch).items()}

    def _losses_by_set(self, batch: Batch) -> Outputs:
        """The weighted sum "loss" and the six losses of each set, `[batch]`, by two views."""
        points = torch.cat([view(batch, 0), view(batch, 1)])
        aligned = self.model.align(points)
        # The Chamfer distance is that of the first view alone: the first half of every field.
        first_views = Aligned(*(field[: len(batch.inputs)] for field in aligned))
        terms = capsule_losses(aligned, batch, points) | {"chamfer": self._chamfer(first_views)}
        weighted = [LOSSES[self.loss][name] * losses for name, losses in terms.items()]
        return {"loss": torch.stack(weighted).sum(dim=0), **terms}

    def _chamfer(self, aligned: Aligned) -> Float[Tensor, " batch"]:
        """The Chamfer distance of each set and its drawing, in the canonical pose."""
        drawing = self.model.draw(*self.model.described(aligned))
        return chamfer_distance(aligned.upright, drawing.flatten(1, 2))

    def eval_step(self, batch: Batch) -> Outputs:
        """Tensors that the metrics are computed from, for each set of a batch.

        Rotations are of the set as it was before its motions: R of a view times the rotation of its
        motion. They are equal for all views if the canonical pose is. A mean of rotations is in
        general no rotation; see `resultant_lengths`.

        Returns:
            "loss": of the first two views. "size": mean squared distance of the points from their
            center. "equivariance": mean squared distance of keypoints, moved back, from their mean
            over views. "chamfer": mean over views. "canonical_rotation" and, by principal axes in
            place of the model, "axes_rotation": means over views, `[batch, dim, dim]`. All others
            are `[batch]`.
        """
        views = []
        for index, rotation in enumerate(batch.targets["rotation"].unbind(dim=1)):
            points = view(batch, index)
            aligned = self.model.align(points)
            axes = principal_axes(points.squeeze(3).mT)
            with without_autocast(points):
                # Keypoints moved back: the inverse motion is x -> rotation^T (x - shift).
                shift = batch.targets["shift"][:, index : index + 1]
                columns = {
                    "chamfer": self._chamfer(aligned),
                    "canonical_rotation": aligned.rotation @ rotation,
                    "axes_rotation": axes @ rotation,
                    "keypoints": (aligned.keypoints - shift) @ rotation,
                }
            views.append(columns)

        outputs = {name: torch.stack([row[name] for row in views], dim=1) for name in columns}
        keypoints = outputs.pop("keypoints")  # [batch, views, capsules, dim]
        scatter = (keypoints - keypoints.mean(dim=1, keepdim=True)).square().sum(dim=3)
        centered_points = batch.inputs.squeeze(3) - batch.inputs.mean(dim=2)
        return {
            "loss": self._losses_by_set(batch)["loss"],
            "size": centered_points.square().sum(dim=1).mean(dim=1),
            "equivariance": scatter.mean(dim=(1, 2)),
            **{name: column.mean(dim=1) for name, column in outputs.items()},
        }

    def compute_metrics(self, outputs: Outputs) -> dict[str, float]:
        """Metrics of test sets under eight fixed motions each, from the tensors of `eval_step`.

        Returns:
            "loss": mean weighted loss of the first two views. "chamfer": distance of set and
            drawing in the canonical pose. "explained": 1 minus the ratio of the Chamfer distance to
            twice the mean squared distance of points from their center; twice, because the Chamfer
            distance adds both directions. "steadiness": resultant length, in [0, 1], of the
            canonical rotations of one set; "spread": its circular standard deviation,
            `sqrt(-2 ln length)`, in degrees, at most 174; both are means over sets. "agreement":
            the length for the mean rotations of all sets, which says something where the sets are
            in one pose. "equivariance": root mean square distance of keypoints, moved back, from
            their mean. "axes_steadiness", "axes_spread", "axes_agreement": those of alignment by
            principal axes, for comparison.
        """
        # Means over sets, by name.
        mean = super().compute_metrics(outputs)
        metrics = {
            "loss": mean["loss"],
            "explained": 1 - mean["chamfer"] / (2 * mean["size"]),
            "chamfer": mean["chamfer"],
            "equivariance": math.sqrt(mean["equivariance"]),
        }
        for prefix, name in (("", "canonical_rotation"), ("axes_", "axes_rotation")):
            lengths, agreement = resultant_lengths(outputs[name])
            spread = lengths.clamp(MIN_LENGTH, 1).log().mul(-2).sqrt().rad2deg()
            metrics[f"{prefix}steadiness"] = lengths.mean().item()
            metrics[f"{prefix}spread"] = spread.mean().item()
            metrics[f"{prefix}agreement"] = agreement
        return metrics

    def report_items(self, evaluation: EvaluationResult, images: Dataset) -> list[ReportItem]:
        """A plot of some views of test sets, colored by capsule; `evaluation` is not needed."""
        from torchcaps import viz

        rows: dict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        with evaluating(self):
            batch = first_batch(self, images, NUM_EXAMPLES)
            for index in range(NUM_EXAMPLE_VIEWS):
                points = view(batch, index)
                aligned = self.model.align(points)
                drawing = self.model.draw(*self.model.described(aligned))
                parts = torch.arange(drawing.shape[1]).repeat_interleave(drawing.shape[2])
                for i, capsules in enumerate(aligned.attention.argmax(dim=2).cpu()):
                    rows["as it is moved"].append((points[i].squeeze(2).mT.cpu(), capsules))
                    rows["canonical pose"].append((aligned.upright[i].cpu(), capsules))
                    rows["as it is drawn"].append((drawing[i].flatten(0, 1).cpu(), parts))
        return [
            ReportItem(
                "capsules",
                "The capsules",
                f"{len(batch.inputs)} test sets, after each of {NUM_EXAMPLE_VIEWS} motions; a "
                "color is a capsule. The canonical pose should be the same for all motions, and "
                "parts should keep their colors. Of three coordinates two show.",
                viz.point_sets(rows),
                "Sets of points colored by capsule, as they are moved, in the canonical pose, and "
                "as they are drawn.",
            )
        ]

    def predict(self, images: Tensor) -> Predictions:
        """The canonical pose of each set, and its parts.

        Args:
            images: sets of points `[batch, dim, points, 1]`.

        Returns:
            For each set, numbers and nested lists: "rotation" and "translation", the motion to the
            canonical pose; "points" in that pose; "keypoints" of the set as it is; "capsule", the
            index of the capsule of each point; "chamfer", the distance of set and drawing; and in
            the plane "angle", of the rotation, in degrees.
        """
        aligned = self.model.align(images)
        columns = {
            "chamfer": self._chamfer(aligned),
            "rotation": aligned.rotation,
            "translation": aligned.translation,
            "keypoints": aligned.keypoints,
            "capsule": aligned.attention.argmax(dim=2),
            "points": aligned.upright,
        }
        rows = []
        for numbers in zip(*(column.tolist() for column in columns.values()), strict=True):
            row = dict(zip(columns, numbers, strict=True))
            if self.model.in_chans == 2:
                (cos, _), (sin, _) = row["rotation"]
                row = {"angle": math.degrees(math.atan2(sin, cos)), **row}
            rows.append(row)
        return rows


def capsule_losses(aligned: Aligned, batch: Batch, points: Tensor) -> Outputs:
    """Five losses of each set, `[batch]`; the sixth is the Chamfer distance of its drawing.

    Of the views a and b of a set, with the symbols of the top of this file. T is the motion from
    view a to view b. The last three losses are means over both views:

        equivariance   mean over k of |T theta_k(a) - theta_k(b)|^2
        invariance     mean over k and channels of (beta_k(a) - beta_k(b))^2
        localization   sum over k of sum_n A_nk |x_n - theta_k|^2 / sum_n A_nk
        equilibrium    variance over k of sum_n A_nk
        canonical      mean over k of |R theta_k + t - theta^_k|^2

    Args:
        aligned: `[2 batch, ...]`, the first views of all sets, then their second views.
        batch: the sets and the motions.
        points: of these views, `[2 batch, dim, points, 1]`.
    """
    keypoints = aligned.keypoints
    first, second = keypoints.chunk(2)
    first_descriptors, second_descriptors = aligned.descriptors.chunk(2)
    with without_autocast(batch.inputs):
        # Keypoints of the first view, moved back and then by the second motion.
        rotation, shift = batch.targets["rotation"], batch.targets["shift"]
        unmoved = (first - shift[:, :1]) @ rotation[:, 0]
        expected = unmoved @ rotation[:, 1].mT + shift[:, 1:2]
        # R theta_k + t
        upright_keypoints = keypoints @ aligned.rotation.mT + aligned.translation.unsqueeze(1)

        # |x_n - theta_k|^2 = |x_n|^2 + |theta_k|^2 - 2 x_n theta_k, as one table
        # [2 batch, points, capsules], whatever the number of coordinates.
        points = points.squeeze(3).mT
        norms = points.square().sum(dim=2, keepdim=True)
        norms = norms + keypoints.square().sum(dim=2).unsqueeze(1)
        squared_distances = (norms - 2 * points @ keypoints.mT).clamp(min=0)
        mass = aligned.attention.sum(dim=1)  # number of points of each capsule
        spread = (aligned.attention * squared_distances).sum(dim=1) / mass.clamp(min=MIN_MASS)
    # Losses of all views, [2 batch].
    views = {
        "localization": spread.sum(dim=1),
        "equilibrium": mass.var(dim=1),
        "canonical": (upright_keypoints - aligned.canonical).square().sum(dim=2).mean(dim=1),
    }
    return {
        "equivariance": (expected - second).square().sum(dim=2).mean(dim=1),
        "invariance": (first_descriptors - second_descriptors).square().mean(dim=(1, 2)),
        **{name: losses.unflatten(0, (2, -1)).mean(dim=0) for name, losses in views.items()},
    }


def resultant_lengths(
    mean_rotations: Float[Tensor, "sets dim dim"],
) -> tuple[Float[Tensor, " sets"], float]:
    """How much rotations agree: 1 if all are equal, 0 if they cancel each other.

    The resultant length of rotations is the mean singular value of their mean: in the plane, the
    length of the mean of unit vectors.

    Args:
        mean_rotations: the mean of the rotations of each set.

    Returns:
        The length of each set, and that of all sets, each of which counts with the rotation that is
        nearest to its mean.
    """
    u, lengths, vt = torch.linalg.svd(widen(mean_rotations))
    # The nearest rotation: singular values become 1, the last one -1 where all 1 would reflect.
    u[..., -1] *= torch.linalg.det(u @ vt).unsqueeze(1)
    nearest = u @ vt
    return lengths.mean(dim=1), torch.linalg.svdvals(nearest.mean(dim=0)).mean().item()


def principal_axes(points: Float[Tensor, "batch points dim"]) -> Float[Tensor, "batch dim dim"]:
    """Rotations that bring the longest axis of each set to the first coordinate, and so on.

    The rows of a rotation are the axes, eigenvectors of the scatter matrix. The sign of an axis is
    arbitrary, except that of the last axis, which makes the determinant +1.
    """
    points = full_precision(points)
    centered = points - points.mean(dim=1, keepdim=True)
    with without_autocast(points):
        axes = torch.linalg.eigh(centered.mT @ centered)[1].flip(2).mT
    last = axes[:, -1:] * torch.linalg.det(axes)[:, None, None]
    return torch.cat([axes[:, :-1], last], dim=1)


def random_motions(count: int, views: int, dim: int, generator: Generator) -> dict[str, Tensor]:
    """Random rigid motions, on the CPU; see `view`.

    Args:
        count: number of sets.
        views: motions of each set.
        dim: coordinates of a point, 2 or 3.
        generator: source of the random numbers.

    Returns:
        "rotation" `[count, views, dim, dim]`, uniform; "shift" `[count, views, dim]` in
        [-0.2, 0.2].
    """
    if dim == 2:
        angle = 2 * math.pi * torch.rand(count, views, generator=generator)
        cos = angle.cos()
        sin = angle.sin()
        rotation = torch.stack([cos, -sin, sin, cos], dim=2).unflatten(2, (2, 2))
    else:
        # Quaternions w + xi + yj + zk of length 1: R = I + 2 (w C + C C), C the matrix of
        # the cross product with (x, y, z).
        quaternion = F.normalize(torch.randn(count, views, 4, generator=generator), dim=2)
        cross = cross_matrix(quaternion[..., 1:])
        rotation = torch.eye(3) + 2 * (quaternion[..., :1, None] * cross + cross @ cross)
    shift = MAX_SHIFT * (2 * torch.rand(count, views, dim, generator=generator) - 1)
    return {"rotation": rotation, "shift": shift}

"""Parts and canonical poses of sets of points, without labels, from pairs of motions of each set.

Weiwei Sun and others, "Canonical Capsules: Self-Supervised Capsules in Canonical Pose", NeurIPS
2021, arXiv 2012.04718; the six losses with the weights of the authors' code.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Generator, Tensor

from torchcaps.data import ImageSet
from torchcaps.evaluation.forward import evaluating
from torchcaps.functional import chamfer_distance
from torchcaps.functional.bounds import without_autocast
from torchcaps.functional.squash import full_precision
from torchcaps.models import Aligned
from torchcaps.registry import Registry
from torchcaps.tasks._base import (
    EvaluationResult,
    Outputs,
    ReportItem,
    Task,
    first_batch,
    register_task,
)

WEIGHTS = {
    "equivariance": 5.0,
    "localization": 1.0,
    "equilibrium": 1e-3,
    "invariance": 1.0,
    "canonical": 1.0,
    "chamfer": 1.0,
}
# Weights of the parts of a loss, by name.
LOSSES: Registry[Mapping[str, float]] = Registry("loss")
LOSSES.add("weighted", WEIGHTS)
LOSSES.add("without_equivariance", WEIGHTS | {"equivariance": 0.0})
SHIFT = 0.2  # largest translation either way along each axis
NUM_VIEWS = 8  # motions of each set that is measured
SEED = 99
NUM_EXAMPLES = 4  # sets in a figure
NUM_EXAMPLE_VIEWS = 3
MIN_LENGTH = 0.01  # resultant length: the deviation of opposite rotations is infinite
EVAL_BATCH = 32  # sets measured at a time
MIN_MASS = 1e-3  # of a capsule's points, where they are divided by


class Motions(NamedTuple):
    """Sets of points and rigid motions of each: `x -> rotation x + shift`.

    Attributes:
        points: one pixel wide, their coordinates as channels.
        rotation: of each motion.
        shift: of each motion, after the rotation.
    """

    points: Float[Tensor, "batch dim points 1"]
    rotation: Float[Tensor, "batch views dim dim"]
    shift: Float[Tensor, "batch views dim"]

    def view(self, index: int) -> Float[Tensor, "batch dim points 1"]:
        """The sets after one of their motions."""
        with without_autocast(self.points):
            turned = self.rotation[:, index] @ self.points.squeeze(3)
            return (turned + self.shift[:, index].unsqueeze(2)).unsqueeze(3)


@register_task("align")
class Align(Task):
    """Two rigid motions of a set of points, whose capsules move with it.

    They put it into the same canonical pose.
    """

    score = "steadiness"  # a drawing may be good in any pose
    losses: ClassVar[Registry[Mapping[str, float]]] = LOSSES
    labeled = False
    augments = False  # sets of points are moved by motions of its own
    clip = 0.0  # as in the authors' code
    eval_batch_size = EVAL_BATCH
    requires = "a model of sets of points"
    data = "sets of points"

    @classmethod
    def supports(cls, images: ImageSet) -> bool:
        return images.preprocess.kind == "points"

    def sample_batch(self, images: ImageSet, indices: Tensor, generator: Generator) -> Motions:
        """Two random motions of each set; of those that are measured eight fixed ones."""
        points = images.float_images(indices)
        dim = images.in_chans
        if self.training:
            rotation, shift = random_motions(len(indices), 2, dim, generator)
        else:
            fixed = Generator().manual_seed(SEED)
            motions = random_motions(len(images), NUM_VIEWS, dim, fixed)
            rotation = motions[0][indices.cpu()]
            shift = motions[1][indices.cpu()]
        return Motions(points, rotation.to(points), shift.to(points))

    def training_step(self, batch: Motions, fraction_trained: float) -> Outputs:
        return {name: losses.mean() for name, losses in self._losses(batch).items()}

    def _losses(self, batch: Motions) -> Outputs:
        aligned = self.model.align(torch.cat([batch.view(0), batch.view(1)]))
        first = Aligned(*(part[: len(batch.points)] for part in aligned))
        parts = capsule_losses(aligned, batch) | {"chamfer": self._chamfer(first)}
        weights = LOSSES[self.loss]
        weighted = [weights[name] * losses for name, losses in parts.items()]
        return {"loss": torch.stack(weighted).sum(dim=0), **parts}

    def _chamfer(self, aligned: Aligned) -> Float[Tensor, " batch"]:
        """The distance of each set and its drawing, in the canonical pose."""
        drawing = self.model.draw(*self.model.described(aligned))
        return chamfer_distance(aligned.upright, drawing.flatten(1, 2))

    def eval_step(self, batch: Motions) -> Outputs:
        """Losses of each set, and its canonical rotations and keypoints under all motions."""
        chamfer: list[Tensor] = []
        turns: list[Tensor] = []
        axes: list[Tensor] = []
        homes: list[Tensor] = []
        for k in range(batch.shift.shape[1]):
            points = batch.view(k)
            rotation = batch.rotation[:, k]
            aligned = self.model.align(points)
            chamfer.append(self._chamfer(aligned))
            turns.append(aligned.rotation @ rotation)
            axes.append(principal_axes(points.squeeze(3).mT) @ rotation)
            # Keypoints of the set before it was moved.
            homes.append((aligned.keypoints - batch.shift[:, k].unsqueeze(1)) @ rotation)

        home = torch.stack(homes, dim=1)
        scatter = (home - home.mean(dim=1, keepdim=True)).square().sum(dim=3)
        centered = batch.points.squeeze(3) - batch.points.mean(dim=2)
        return {
            "loss": self._losses(batch)["loss"],
            "size": centered.square().sum(dim=1).mean(dim=1),
            "equivariance": scatter.mean(dim=(1, 2)),
            "chamfer": torch.stack(chamfer, dim=1).mean(dim=1),
            "turn": torch.stack(turns, dim=1).mean(dim=1),
            "axes": torch.stack(axes, dim=1).mean(dim=1),
        }

    def compute_metrics(self, outputs: Outputs) -> dict[str, float]:
        """Figures of sets under eight fixed motions each.

        Returns:
            "chamfer": distance of set and drawing in the canonical pose. "explained": 1 minus its
            share of twice the mean squared distance from the center. "steadiness": resultant
            length, in [0, 1], of the canonical rotations of one set; "spread": its circular
            standard deviation, `sqrt(-2 ln length)`, in degrees, at most 174; both are means over
            sets. "agreement": the length for the mean rotations of all sets, which says something
            where the sets are in one pose. "equivariance": root mean square distance of keypoints,
            moved back, from their mean. "axes_...": the same of alignment by principal axes.
        """
        mean = super().compute_metrics(outputs)
        metrics = {
            "loss": mean["loss"],
            "explained": 1 - mean["chamfer"] / (2 * mean["size"]),
            "chamfer": mean["chamfer"],
            "equivariance": math.sqrt(mean["equivariance"]),
        }
        for prefix, key in (("", "turn"), ("axes_", "axes")):
            lengths, agreement = resultant_lengths(outputs[key])
            spread = lengths.clamp(MIN_LENGTH, 1).log().mul(-2).sqrt().rad2deg()
            metrics[f"{prefix}steadiness"] = lengths.mean().item()
            metrics[f"{prefix}spread"] = spread.mean().item()
            metrics[f"{prefix}agreement"] = agreement
        return metrics

    def report_items(self, evaluation: EvaluationResult, images: ImageSet) -> list[ReportItem]:
        from torchcaps import viz

        rows: dict[str, list[tuple[Tensor, Tensor]]] = {
            "as it is moved": [],
            "canonical pose": [],
            "as it is drawn": [],
        }
        with evaluating(self):
            batch = first_batch(self, images, NUM_EXAMPLES)
            for view in range(NUM_EXAMPLE_VIEWS):
                points = batch.view(view)
                aligned = self.model.align(points)
                drawing = self.model.draw(*self.model.described(aligned)).cpu()
                capsules = aligned.attention.argmax(dim=2).cpu()
                parts = torch.arange(drawing.shape[1]).repeat_interleave(drawing.shape[2])
                for i in range(len(points)):
                    rows["as it is moved"].append((points[i].squeeze(2).mT.cpu(), capsules[i]))
                    rows["canonical pose"].append((aligned.upright[i].cpu(), capsules[i]))
                    rows["as it is drawn"].append((drawing[i].flatten(0, 1), parts))
        return [
            ReportItem(
                "capsules",
                "The capsules",
                f"{len(batch.points)} test sets, after each of {NUM_EXAMPLE_VIEWS} motions; a "
                "color is a capsule. The canonical pose should be the same for all motions, and parts "
                "should keep their colors. Of three coordinates two show.",
                viz.point_sets(rows),
                "Sets of points colored by capsule, as they are moved, in the canonical pose, and "
                "as they are drawn.",
            )
        ]

    @torch.inference_mode()
    def predict(self, images: Tensor) -> list[dict[str, Any]]:
        aligned = self.model.align(images)
        columns = {
            "chamfer": self._chamfer(aligned),
            "rotation": aligned.rotation.double(),
            "translation": aligned.translation,
            "keypoints": aligned.keypoints,
            "capsule": aligned.attention.argmax(dim=2),
            "points": aligned.upright,
        }
        rows = []
        for i in range(len(images)):
            row = {name: values[i].tolist() for name, values in columns.items()}
            if self.model.in_chans == 2:  # of a rotation of the plane, in degrees
                angle = math.degrees(math.atan2(row["rotation"][1][0], row["rotation"][0][0]))
                row = {"angle": angle} | row
            rows.append(row)
        return rows


def capsule_losses(aligned: Aligned, batch: Motions) -> Outputs:
    """Five losses of each set, `[batch]`, without the Chamfer distance of its drawing.

    Args:
        aligned: the sets after their first motions, then after their second ones.
        batch: the sets and the motions.

    Returns:
        "equivariance": squared distance of keypoints of the second view from the moved ones of the
        first, a mean over capsules. "invariance": mean squared difference of descriptors. And as
        means of both views: "localization": variance of a capsule's points, summed over capsules;
        "equilibrium": variance over capsules of the points they have; "canonical": squared distance
        of aligned keypoints from canonical ones, a mean over capsules.
    """
    keypoints = aligned.keypoints
    first, second = keypoints.chunk(2)
    with without_autocast(batch.points):
        home = (first - batch.shift[:, :1]) @ batch.rotation[:, 0]
        expected = home @ batch.rotation[:, 1].mT + batch.shift[:, 1:2]
        fitted = keypoints @ aligned.rotation.mT + aligned.translation.unsqueeze(1)
        points = torch.cat([batch.view(0), batch.view(1)]).squeeze(3).mT
        mass = aligned.attention.sum(dim=1)
        # One table [batch, points, capsules], whatever the number of coordinates.
        norms = points.square().sum(dim=2, keepdim=True)
        norms = norms + keypoints.square().sum(dim=2).unsqueeze(1)
        squared_distances = (norms - 2 * points @ keypoints.mT).clamp(min=0)
        variance = (aligned.attention * squared_distances).sum(dim=1) / mass.clamp(min=MIN_MASS)
    canonical = (fitted - aligned.canonical).square().sum(dim=2).mean(dim=1)
    descriptors = aligned.descriptors.chunk(2)
    return {
        "equivariance": (expected - second).square().sum(dim=2).mean(dim=1),
        "invariance": (descriptors[0] - descriptors[1]).square().mean(dim=(1, 2)),
        "localization": _mean_of_views(variance.sum(dim=1)),
        "equilibrium": _mean_of_views(mass.var(dim=1)),
        "canonical": _mean_of_views(canonical),
    }


def _mean_of_views(losses: Float[Tensor, " views_batch"]) -> Float[Tensor, " batch"]:
    """Losses of the first views, then of the second ones, averaged."""
    return torch.stack(losses.chunk(2)).mean(dim=0)


def resultant_lengths(turns: Float[Tensor, "sets dim dim"]) -> tuple[Float[Tensor, " sets"], float]:
    """Resultant lengths of rotations in [0, 1], from the mean rotation of each set.

    The resultant length of rotations is the mean singular value of their mean: in the plane, the
    length of the mean of unit vectors.

    Args:
        turns: the mean rotation of each set.

    Returns:
        The length of each set, and that of all sets, each of which counts with the rotation that is
        nearest to its mean.
    """
    u, lengths, v = torch.linalg.svd(turns.double())
    sign = torch.ones_like(lengths)
    sign[:, -1] = torch.linalg.det(u @ v)
    nearest = (u * sign.unsqueeze(1)) @ v
    agreement = torch.linalg.svdvals(nearest.mean(dim=0)).mean()
    return lengths.mean(dim=1), agreement.item()


def principal_axes(points: Float[Tensor, "batch points dim"]) -> Float[Tensor, "batch dim dim"]:
    """Rotations that bring the longest axis of each set to the first coordinate.

    The first axis points either way.
    """
    points = full_precision(points)
    centered = points - points.mean(dim=1, keepdim=True)
    with without_autocast(points):
        axes = torch.linalg.eigh(centered.mT @ centered)[1].flip(2).mT
    last = axes[:, -1:] * torch.linalg.det(axes)[:, None, None]
    return torch.cat([axes[:, :-1], last], dim=1)


def random_motions(count: int, views: int, dim: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Random rigid motions, on the generator's device.

    Returns:
        Uniform rotations `[count, views, dim, dim]`; shifts `[count, views, dim]` in [-0.2, 0.2].
    """
    device = generator.device
    if dim == 2:
        angle = 2 * math.pi * torch.rand(count, views, generator=generator, device=device)
        cos = angle.cos()
        sin = angle.sin()
        rotation = torch.stack([cos, -sin, sin, cos], dim=2).unflatten(2, (2, 2))
    else:  # by quaternions w + xi + yj + zk of length 1
        normal = torch.randn(count, views, 4, generator=generator, device=device)
        w, x, y, z = F.normalize(normal, dim=2).unbind(dim=2)
        zero = torch.zeros_like(w)
        cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=2).unflatten(2, (3, 3))
        eye = torch.eye(3, device=device)
        rotation = eye + 2 * (w[..., None, None] * cross + cross @ cross)
    uniform = torch.rand(count, views, dim, generator=generator, device=device)
    return rotation, SHIFT * (2 * uniform - 1)

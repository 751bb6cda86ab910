"""Parts and canonical poses of sets of points, without labels, from pairs of rigid motions of each set.

Weiwei Sun and others, "Canonical Capsules: Self-Supervised Capsules in Canonical Pose", NeurIPS 2021, arXiv 2012.04718;
the six losses with the weights of the authors' code.
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
VIEWS = 8  # motions of each set that is measured
SEED = 99
SHAPES = 4  # drawn
SHOWN_VIEWS = 3
LEAST = 0.01  # resultant length: the deviation of opposite rotations is infinite
PIECE = 32  # sets measured at a time


class Motions(NamedTuple):
    """Sets of points and rigid motions of each: `x -> rotation x + shift`."""

    points: Float[Tensor, "batch dim points 1"]
    rotation: Float[Tensor, "batch views dim dim"]
    shift: Float[Tensor, "batch views dim"]

    def view(self, index: int) -> Float[Tensor, "batch dim points 1"]:
        """The sets after one of their motions."""
        with without_autocast(self.points):
            moved = self.rotation[:, index] @ self.points.squeeze(3) + self.shift[
                :, index
            ].unsqueeze(2)
        return moved.unsqueeze(3)


@register_task("align")
class Align(Task):
    """Two rigid motions of a set of points: its capsules move with it, and put it into the same canonical pose."""

    score = "steadiness"  # a drawing may be good in any pose
    losses: ClassVar[Registry[Mapping[str, float]]] = LOSSES
    labeled = False
    augments = False  # sets of points are moved by motions of its own
    clip = 0.0  # as in the authors' code
    eval_batch_size = PIECE
    requires = "a model of sets of points"
    data = "sets of points"

    @classmethod
    def supports(cls, images: ImageSet) -> bool:
        return images.preprocess.kind == "points"

    def sample_batch(self, images: ImageSet, indices: Tensor, generator: Generator) -> Motions:
        """Two random motions of each set; of those that are measured eight, whatever else is in the batch."""
        points = images.float_images(indices)
        dim = images.in_chans
        if self.training:
            rotation, shift = random_motions(len(indices), 2, dim, generator)
        else:
            fixed = Generator().manual_seed(SEED)
            motions = random_motions(len(images), VIEWS, dim, fixed)
            rotation, shift = (each[indices.cpu()] for each in motions)
        return Motions(points, rotation.to(points), shift.to(points))

    def training_step(self, batch: Motions, progress: float) -> Outputs:
        return {name: values.mean() for name, values in self._losses(batch).items()}

    def _losses(self, batch: Motions) -> Outputs:
        count = len(batch.points)
        both = self.model.align(torch.cat([batch.view(0), batch.view(1)]))
        first = Aligned(*(part[:count] for part in both))
        parts = capsule_losses(both, batch) | {"chamfer": self._chamfer(first)}
        weights = LOSSES[self.loss]
        weighted = torch.stack([weights[name] * value for name, value in parts.items()])
        return {"loss": weighted.sum(dim=0), **parts}

    def _chamfer(self, aligned: Aligned) -> Float[Tensor, " batch"]:
        """The distance of each set and its drawing, in the canonical pose."""
        drawn = self.model.draw(*self.model.described(aligned))
        return chamfer_distance(aligned.upright, drawn.flatten(1, 2))

    def eval_step(self, batch: Motions) -> Outputs:
        views: dict[str, list[Tensor]] = {"chamfer": [], "turn": [], "axes": [], "home": []}
        for k in range(batch.shift.shape[1]):
            points = batch.view(k)
            rotation = batch.rotation[:, k]
            aligned = self.model.align(points)
            views["chamfer"].append(self._chamfer(aligned))
            views["turn"].append(aligned.rotation @ rotation)
            views["axes"].append(principal_axes(points.squeeze(3).mT) @ rotation)
            moved_back = aligned.keypoints - batch.shift[:, k].unsqueeze(1)
            views["home"].append(moved_back @ rotation)
        of_views = {name: torch.stack(values, dim=1) for name, values in views.items()}
        home = of_views.pop("home")
        scatter = (home - home.mean(dim=1, keepdim=True)).square().sum(dim=3)
        centered = batch.points.squeeze(3) - batch.points.mean(dim=2)
        return {
            "loss": self._losses(batch)["loss"],
            "size": centered.square().sum(dim=1).mean(dim=1),
            "equivariance": scatter.mean(dim=(1, 2)),
            **{name: values.mean(dim=1) for name, values in of_views.items()},
        }

    def compute_metrics(self, outputs: Outputs) -> dict[str, float]:
        """Figures of sets under eight fixed motions each.

        `chamfer` is the distance of set and drawing in the canonical pose, `explained` 1 minus its share of twice the
        mean squared distance from the center; `steadiness` is the resultant length, in [0, 1], of the canonical
        rotations of one set and `spread` its circular standard deviation, `sqrt(-2 ln length)`, in degrees, at most
        174, both means over sets; `agreement` the length for the mean rotations of all sets, which says something where
        the sets are in one pose; `equivariance` the root mean square distance of keypoints, moved back, from their
        mean. `axes_` are the same of alignment by principal axes."""
        mean = {
            name: values.double().mean().item()
            for name, values in outputs.items()
            if values.dim() == 1
        }
        metrics = {
            "loss": mean["loss"],
            "explained": 1 - mean["chamfer"] / (2 * mean["size"]),
            "chamfer": mean["chamfer"],
            "equivariance": math.sqrt(mean["equivariance"]),
        }
        for name, key in (("", "turn"), ("axes_", "axes")):
            lengths, agreement = resultant_lengths(outputs[key])
            spread = lengths.clamp(LEAST, 1).log().mul(-2).sqrt().rad2deg().mean().item()
            metrics[f"{name}steadiness"] = lengths.mean().item()
            metrics[f"{name}spread"] = spread
            metrics[f"{name}agreement"] = agreement
        return metrics

    def report_items(self, evaluation: EvaluationResult, images: ImageSet) -> list[ReportItem]:
        from torchcaps import viz

        moved, canonical, drawings = [], [], []
        with evaluating(self):
            batch = first_batch(self, images, SHAPES)
            for view in range(SHOWN_VIEWS):
                points = batch.view(view)
                aligned = self.model.align(points)
                drawn = self.model.draw(*self.model.described(aligned)).cpu()
                capsules = aligned.attention.argmax(dim=2).cpu()
                parts = torch.arange(drawn.shape[1]).repeat_interleave(drawn.shape[2])
                for i in range(len(points)):
                    moved.append((points[i].squeeze(2).mT.cpu(), capsules[i]))
                    canonical.append((aligned.upright[i].cpu(), capsules[i]))
                    drawings.append((drawn[i].flatten(0, 1), parts))
        rows = {
            "as it is moved": moved,
            "canonical pose": canonical,
            "as it is drawn": drawings,
        }
        about = (
            f"{len(batch.points)} test sets, after each of {SHOWN_VIEWS} motions; a color is a "
            "capsule. The canonical pose should be the same for all motions, and parts should keep "
            "their colors. Of three coordinates two show."
        )
        alt = "Sets of points colored by capsule, as they are moved, in the canonical pose, and as they are drawn."
        return [
            ReportItem(
                "capsules",
                "The capsules",
                about,
                viz.point_sets(rows),
                alt,
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
        rows: list[dict[str, Any]] = [
            {name: values[i].tolist() for name, values in columns.items()}
            for i in range(len(images))
        ]
        if self.model.in_chans == 3:
            return rows
        return [{"angle": _angle(row["rotation"])} | row for row in rows]


def _angle(rotation: list[list[float]]) -> float:
    """Of a rotation of the plane, in degrees."""
    return math.degrees(math.atan2(rotation[1][0], rotation[0][0]))


def capsule_losses(both: Aligned, batch: Motions) -> Outputs:
    """Five losses of each set, `[batch]`, without the Chamfer distance of its drawing; `both` is of the sets after
    their first motions, then after their second ones.

    "equivariance": squared distance of keypoints of the second view from the moved ones of the first, a mean over
    capsules; "localization": variance of a capsule's points, summed over capsules; "equilibrium": variance over
    capsules of the points they have; "invariance": mean squared difference of descriptors; "canonical": squared
    distance of aligned keypoints from canonical ones, a mean over capsules. Localization, equilibrium and canonical
    are of one view, and means of both."""
    count = len(batch.points)
    first = Aligned(*(part[:count] for part in both))
    second = Aligned(*(part[count:] for part in both))
    with without_autocast(batch.points):
        home = (first.keypoints - batch.shift[:, :1]) @ batch.rotation[:, 0]
        moved = home @ batch.rotation[:, 1].mT + batch.shift[:, 1:2]
        fitted = both.keypoints @ both.rotation.mT + both.translation.unsqueeze(1)
        points = torch.cat([batch.view(0), batch.view(1)]).squeeze(3).mT
        mass = both.attention.sum(dim=1)
        # One table [batch, points, capsules], whatever the number of coordinates.
        norms = points.square().sum(dim=2, keepdim=True)
        norms = norms + both.keypoints.square().sum(dim=2).unsqueeze(1)
        squared_distances = (norms - 2 * points @ both.keypoints.mT).clamp(min=0)
        variance = (both.attention * squared_distances).sum(dim=1) / mass.clamp(min=1e-3)
    of_views = {
        "localization": variance.sum(dim=1),
        "equilibrium": mass.var(dim=1),
        "canonical": (fitted - both.canonical).square().sum(dim=2).mean(dim=1),
    }
    return {
        "equivariance": (moved - second.keypoints).square().sum(dim=2).mean(dim=1),
        "invariance": (first.descriptors - second.descriptors).square().mean(dim=(1, 2)),
        **{name: value.unflatten(0, (2, count)).mean(dim=0) for name, value in of_views.items()},
    }


def resultant_lengths(turns: Float[Tensor, "sets dim dim"]) -> tuple[Float[Tensor, " sets"], float]:
    """Lengths in [0, 1] from the mean rotation of each set: of each, and of the sets together.

    The resultant length of rotations is the mean singular value of their mean: in the plane, the length of the mean of
    unit vectors. Together, each set counts with the rotation that is nearest to its mean."""
    u, lengths, v = torch.linalg.svd(turns.double())
    sign = torch.ones_like(lengths)
    sign[:, -1] = torch.linalg.det(u @ v)
    together = torch.linalg.svdvals(((u * sign.unsqueeze(1)) @ v).mean(dim=0)).mean()
    return lengths.mean(dim=1), together.item()


def principal_axes(points: Float[Tensor, "batch points dim"]) -> Float[Tensor, "batch dim dim"]:
    """Rotations that bring the longest axis of each set to the first coordinate; the first axis points either way."""
    points = full_precision(points)
    centered = points - points.mean(dim=1, keepdim=True)
    with without_autocast(points):
        axes = torch.linalg.eigh(centered.mT @ centered)[1].flip(2).mT
    return torch.cat([axes[:, :-1], axes[:, -1:] * torch.linalg.det(axes)[:, None, None]], dim=1)


def random_motions(count: int, views: int, dim: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Rotations `[count, views, dim, dim]`, uniform, and shifts `[count, views, dim]` in -0.2..0.2, on its device."""
    random: dict[str, Any] = {"generator": generator, "device": generator.device}
    if dim == 2:
        angle = 2 * math.pi * torch.rand(count, views, **random)
        cos = angle.cos()
        sin = angle.sin()
        rotation = torch.stack([cos, -sin, sin, cos], dim=2).unflatten(2, (2, 2))
    else:  # by quaternions w + xi + yj + zk of length 1
        w, x, y, z = F.normalize(torch.randn(count, views, 4, **random), dim=2).unbind(dim=2)
        zero = torch.zeros_like(w)
        cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=2).unflatten(2, (3, 3))
        eye = torch.eye(3, device=generator.device)
        rotation = eye + 2 * (w[..., None, None] * cross + cross @ cross)
    shift = SHIFT * (2 * torch.rand(count, views, dim, **random) - 1)
    return rotation, shift

"""Principal axes of the poses of a class, and what the drawing does along them.

A single dimension of a pose hardly varies over images; the axes along which poses vary most change
the drawing in ways that have names. The paper moves single dimensions (arXiv 1710.09829, section
5.1); the axes are the library's own reading.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from torchcaps.evaluation.base import Images, Labels, capsule_model, check_labeled
from torchcaps.evaluation.forward import device_of, evaluating
from torchcaps.types import Capsules

NUM_AXES = 4
REACH = 2.5  # standard deviations on either side
STEPS = 11
MIN_IMAGES = 8  # of a class whose axes are measured
MIN_CORRELATION = 0.9  # of Spearman, between the place on an axis and what it changes
MIN_CHANGE = 1.0  # from end to end, in the larger of two: the standard deviation over the class,
# and what an eye sees
VISIBLE = {
    "slant": 0.1,
    "width": 0.5,
    "height": 0.5,
    "thickness": 0.1,
    "across": 1.0,
    "down": 1.0,
}


@dataclass(frozen=True, eq=False)
class PoseAxes:
    """The poses of one class.

    Attributes:
        mean: `[dim]`, mean pose of the images of the class that are read right.
        axes: `[axes, dim]`, unit vectors, those of the largest variance first.
        std: `[axes]`, standard deviation of the poses along each.
        share: part of the variance that the axes hold, in [0, 1].
        names: what each axis changes: "slant", "width", "height", "thickness", "across" or "down",
            or "" where the drawing does not change steadily.
    """

    mean: Float[Tensor, " dim"]
    axes: Float[Tensor, "axes dim"]
    std: Float[Tensor, " axes"]
    share: float
    names: tuple[str, ...]


def measure_drawings(images: Images) -> dict[str, Float[Tensor, " n"]]:
    """Slant, width, height, thickness and place of the ink of each image.

    Args:
        images: `[n, channels, height, width]` in [0, 1].

    Returns:
        By name: "slant" is the tangent of the lean to the right; "width" and "height" are standard
        deviations of the ink in pixels; "thickness" is the ink per pixel of its outline; "across"
        and "down" are the center of the ink in pixels.
    """
    ink = images.double().mean(dim=1)
    total = ink.sum(dim=(1, 2)).clamp_min(1e-9)
    rows = torch.arange(ink.shape[1], dtype=ink.dtype)[:, None]
    columns = torch.arange(ink.shape[2], dtype=ink.dtype)
    weights = ink / total[:, None, None]
    down = (weights * rows).sum(dim=(1, 2))
    across = (weights * columns).sum(dim=(1, 2))
    y = rows - down[:, None, None]
    x = columns - across[:, None, None]
    variance_y = (weights * y * y).sum(dim=(1, 2))
    variance_x = (weights * x * x).sum(dim=(1, 2))
    slant = -(weights * x * y).sum(dim=(1, 2)) / variance_y.clamp_min(1e-9)
    outline = ink.diff(dim=1).abs().sum(dim=(1, 2)) + ink.diff(dim=2).abs().sum(dim=(1, 2))
    upright = variance_x - slant.square() * variance_y  # once the slant is taken out
    return {
        "slant": slant,
        "width": upright.clamp_min(0).sqrt(),
        "height": variance_y.sqrt(),
        "thickness": total / outline.clamp_min(1e-9),
        "across": across,
        "down": down,
    }


def pose_axes(model: nn.Module, images: Images, labels: Labels) -> dict[int, PoseAxes]:
    """The principal axes of the poses of each class, named by what they change.

    An axis has a name where, from -2.5 to 2.5 standard deviations, a measure of the drawing changes
    steadily (Spearman's correlation at least 0.9) and visibly: by at least one standard deviation
    of that measure over the drawings of the class, and by `VISIBLE`. Of several, the one that
    changes most counts, and each names one axis alone.

    Args:
        model: a model with class capsules and a decoder.
        images: `[n, channels, height, width]` in [0, 1].
        labels: `[n]` true classes.

    Returns:
        By class; classes with fewer than 8 images that the model reads right are absent.

    Raises:
        ArgumentError: for another model, or images or labels that do not fit.
    """
    check_labeled(images, labels)
    network = capsule_model(model, decoder=True)
    by_class = {}
    with evaluating(network):
        pose, activation = network.capsules(images.to(device_of(network)))
        pose = pose.cpu()
        is_right = activation.argmax(dim=1).cpu() == labels.cpu()
        for label in range(activation.shape[1]):
            is_example = is_right & (labels == label)
            if int(is_example.sum()) >= MIN_IMAGES:
                by_class[label] = _axes_of_class(network, pose[is_example, label].double(), label)
    return by_class


def _axes_of_class(model: Any, poses: Tensor, label: int) -> PoseAxes:
    """The axes of one class from its poses `[n, dim]`."""
    mean = poses.mean(dim=0)
    _, spread, axes = torch.linalg.svd(poses - mean, full_matrices=False)
    variances = spread.square() / (len(poses) - 1)
    count = min(NUM_AXES, len(variances))
    axes = axes[:count]
    deviations = variances[:count].sqrt()
    units = {}
    for name, figures in measure_drawings(_draw(model, poses, label)).items():
        units[name] = max(float(figures.std()), VISIBLE[name])
    names: list[str] = []
    for axis, deviation in zip(axes, deviations, strict=True):
        offsets = torch.linspace(-REACH, REACH, STEPS, dtype=axis.dtype) * deviation
        along = measure_drawings(_draw(model, mean + offsets[:, None] * axis, label))
        name = name_axis(along, units, names)
        names.append(name)
        if name and along[name][-1] < along[name][0]:
            axis.neg_()  # what the name says grows to the right
    share = float(variances[:count].sum() / variances.sum())
    return PoseAxes(mean.float(), axes.float(), deviations.float(), share, tuple(names))


def _draw(model: Any, poses: Tensor, label: int) -> Images:
    """Drawings of poses `[n, dim]` of one class, with all other capsules at zero."""
    num_classes = model.num_classes
    is_label = torch.arange(num_classes) == label
    poses = poses.float()
    pose = is_label[:, None] * poses[:, None]
    activation = is_label * poses.norm(dim=-1, keepdim=True)
    device = device_of(model)
    labels = torch.full((len(poses),), label, device=device)
    capsules = Capsules(pose.to(device), activation.to(device))
    drawings: Tensor = model.reconstruct(capsules, labels)
    return drawings.float().cpu()


def name_axis(
    along: Mapping[str, Tensor], units: Mapping[str, float], names: Collection[str] = ()
) -> str:
    """The measure that changes steadily and most along an axis.

    Args:
        along: figures of drawings in the order of the axis, `[steps]`, by measure.
        units: of a visible change of each measure.
        names: measures that other axes have.

    Returns:
        The name of the measure; "" for none.
    """
    from scipy.stats import spearmanr

    changes = {}
    for name, figures in along.items():
        change = float((figures[-1] - figures[0]).abs()) / units[name]
        if change < MIN_CHANGE or name in names:
            continue
        correlation = spearmanr(torch.arange(len(figures)), figures).statistic
        if abs(correlation) >= MIN_CORRELATION:
            changes[name] = change
    return max(changes, key=lambda name: changes[name], default="")

"""Axes of poses, found and named where a decoder's effect is known."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from torchcaps.evaluation import measure_drawings, pose_axes
from torchcaps.types import Capsules, ModelSpec

SIDE = 28
SHIFT = torch.tensor([0.0, 0.5, 0.5, 0.5])  # numbers of a pose in a pixel


def bar(x=13.5, y=13.5, width=4.0, height=12.0, slant=0.0):
    """A soft bar about a place, leaning to the right."""
    rows = torch.arange(SIDE, dtype=torch.float32)[:, None]
    columns = torch.arange(SIDE, dtype=torch.float32)
    across = columns - x + slant * (rows - y)
    inside = torch.sigmoid(2 * (width / 2 - across.abs()))
    return (inside * torch.sigmoid(2 * (height / 2 - (rows - y).abs())))[None]


@pytest.mark.parametrize(
    ("change", "name", "difference"),
    [
        ({"x": 16.5}, "across", 3.0),
        ({"y": 10.5}, "down", -3.0),
        ({"slant": 0.3}, "slant", 0.3),
        ({"height": 18.0}, "height", 6 / 12**0.5),
        ({"width": 8.0}, "width", 4 / 12**0.5),
    ],
)
def test_a_bar_has_the_measures_that_it_was_drawn_with(change, name, difference):
    images = torch.stack([bar(), bar(**change)])
    first, second = measure_drawings(images)[name].tolist()
    assert second - first == pytest.approx(difference, abs=0.12 * abs(difference) + 0.02)


class Bars(nn.Module):
    """The pose of class 0 is (0.5, lean, place, noise); an image holds it in its first pixels."""

    spec = ModelSpec(pose=True, activation="length", decoder=True)
    num_classes = 2

    def capsules(self, images):
        pose = torch.zeros(len(images), 2, 4)
        pose[:, 0] = images[:, 0, 0, :4] - SHIFT
        return Capsules(pose, pose.norm(dim=-1))

    def reconstruct(self, capsules, labels=None):
        bars = [
            bar(x=13.5 + 20 * place, slant=2 * lean)
            for _, lean, place, _ in capsules.pose[:, 0].tolist()
        ]
        return torch.stack(bars)

    def forward(self, images):
        return self.capsules(images).activation


def test_the_axes_are_those_of_most_variance_with_their_names():
    generator = torch.Generator().manual_seed(0)
    images = torch.zeros(60, 1, SIDE, SIDE)
    images[:, 0, 0, 0] = 0.5
    images[:, 0, 0, 1] = 0.10 * torch.randn(60, generator=generator)
    images[:, 0, 0, 2] = 0.05 * torch.randn(60, generator=generator)
    images[:, 0, 0, 3] = 0.01 * torch.randn(60, generator=generator)
    images[:, 0, 0, :4] += SHIFT
    labels = torch.zeros(60, dtype=torch.long)
    axes = pose_axes(Bars(), images, labels)
    assert axes.keys() == {0}
    assert axes[0].names == ("slant", "across", "", "")
    expected = torch.eye(4)[[1, 2]]
    assert_close(axes[0].axes[:2], expected, atol=0.1, rtol=0)  # they grow rightwards
    spread = images[:, 0, 0, 1:3].std(dim=0).sort(descending=True).values
    assert_close(axes[0].std[:2], spread, atol=2e-3, rtol=0)
    assert axes[0].share == pytest.approx(1)

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from torchcaps.evaluation import Diagnosis, diagnose
from torchcaps.nn import CapsuleLinear
from torchcaps.viz import diagnosis

from .drawing import assert_nothing_cut, texts


class Data:
    """Images whose rows are poses."""

    labels = torch.arange(12) % 3
    classes = ("a", "b", "c")

    def float_images(self, indices: torch.Tensor) -> torch.Tensor:
        return torch.rand(12, 1, 6, 4, generator=torch.Generator().manual_seed(0))[indices]


class Stack(nn.Module):
    """Routed layers of these sizes."""

    def __init__(self, *sizes: int, routing: str = "dynamic") -> None:
        super().__init__()
        pairs = zip(sizes, sizes[1:], strict=False)
        self.layers = nn.Sequential(
            *(CapsuleLinear(i, 4, o, 4, routing, impl="reference") for i, o in pairs)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images.squeeze(1)).activation


def found(*sizes: int, baseline: nn.Module | None = None, routing: str = "dynamic") -> Diagnosis:
    return diagnose(Stack(*sizes, routing=routing), Data(), baseline=baseline)


def test_each_panel_shows_the_figures() -> None:
    one = found(6, 5, 3, baseline=nn.Sequential(nn.Flatten(), nn.Linear(24, 3)))
    figure = diagnosis(one)
    entropy, activation, idle, accuracy = figure.axes
    assert entropy.lines[0].get_ydata().tolist() == list(one.iterations.entropy["layers.0"])
    assert activation.lines[0].get_ydata().tolist() == list(one.decay.strongest)
    assert activation.lines[1].get_ydata().tolist() == list(one.decay.median)
    heights = [bar.get_height() for bar in idle.patches]
    assert heights[:3] == [
        one.children.dead,
        one.layers[0].parents.dead,
        one.layers[1].parents.dead,
    ]
    assert heights[6:] == [layer.starvation.starved for layer in one.layers]
    assert one.baseline is not None
    assert [bar.get_height() for bar in accuracy.patches] == [
        one.ablation.routed,
        one.ablation.uniform,
        one.ablation.random,
        one.baseline.second,
    ]
    assert_nothing_cut(figure)


def test_what_was_not_measured_is_left_out() -> None:
    plain = found(6, 3, routing="em")
    figure = diagnosis(plain)
    assert [label.get_text() for label in figure.axes[3].get_xticklabels()] == [
        "as trained",
        "uniform",
        "random",
    ]
    assert figure.axes[3].get_xlim()[1] < 3  # no room is kept for a baseline
    assert_nothing_cut(figure)
    silent = replace(
        plain.layers[0], entropy=None, dynamics=None, tree=None, parents=None, sign=None
    )
    iterations = replace(plain.iterations, entropy={})
    decay = replace(plain.decay, layers=plain.decay.layers[:1], median=(0.5,), strongest=(0.5,))
    figure = diagnosis(
        replace(
            plain, ablation=None, refused="no", layers=(silent,), iterations=iterations, decay=decay
        )
    )
    assert [label.get_text() for label in figure.axes[3].get_xticklabels()] == ["as trained"]
    assert_nothing_cut(figure)


@pytest.mark.parametrize("depth", [1, 9])
def test_any_number_of_layers(depth: int) -> None:
    figure = diagnosis(found(6, *[3] * depth))
    assert len(figure.axes[0].get_legend().get_texts()) == depth
    assert "children" in {text.get_text() for text in texts(figure)}
    assert_nothing_cut(figure)

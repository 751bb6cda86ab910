from dataclasses import replace

import torch
from torch import nn

from evaluation.stubs import RoutedPixels, StubData
from torchcaps.evaluation import diagnose
from torchcaps.viz import diagnosis

from .drawing import assert_nothing_cut, heights, words


def diagnose_stack(*sizes, baseline=None, **options):
    """The diagnosis of routed layers of these sizes."""
    images = torch.rand(12, 1, 6, 4, generator=torch.Generator().manual_seed(0))
    data = StubData(images, torch.arange(12) % 3, ("a", "b", "c"))
    return diagnose(RoutedPixels(*sizes, **options), data, baseline=baseline)


def test_each_panel_has_its_figures():
    baseline = nn.Sequential(nn.Flatten(), nn.Linear(24, 3))
    figures = diagnose_stack(6, 5, 3, baseline=baseline)
    figure = diagnosis(figures)
    entropy, activation, idle, accuracy = figure.axes
    assert tuple(entropy.lines[0].get_ydata()) == figures.iterations.entropy["layers.0"]
    assert tuple(activation.lines[0].get_ydata()) == figures.decay.strongest
    assert tuple(activation.lines[1].get_ydata()) == figures.decay.median
    first, second = figures.layers
    assert heights(idle) == [
        figures.children.dead,
        first.parents.dead,
        second.parents.dead,
        figures.children.constant,
        first.parents.constant,
        second.parents.constant,
        first.starvation.starved,
        second.starvation.starved,
    ]
    assert heights(accuracy) == [
        figures.ablation.routed,
        figures.ablation.uniform,
        figures.ablation.random,
        figures.baseline.second,
    ]
    assert_nothing_cut(figure)


def test_figures_that_are_missing_are_left_out():
    figures = diagnose_stack(6, 3, routing="em")
    accuracy = diagnosis(figures).axes[3]
    assert words(accuracy.get_xticklabels()) == ["as trained", "uniform", "random"]
    assert accuracy.get_xlim()[1] < 3  # no room is kept for a baseline

    layer = replace(figures.layers[0], entropy=None, parents=None)
    decay = replace(
        figures.decay,
        layers=("children",),
        median=(0.5,),
        strongest=(0.5,),
    )
    bare = replace(
        figures,
        ablation=None,
        layers=(layer,),
        iterations=replace(figures.iterations, entropy={}),
        decay=decay,
    )
    figure = diagnosis(bare)
    assert words(figure.axes[3].get_xticklabels()) == ["as trained"]
    assert_nothing_cut(figure)

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
    course = replace(figures.iterations, entropy={"layers.0": (1.0, 0.7, 0.4)})
    figures = replace(figures, iterations=course, children=replace(figures.children, dead=0.25))
    figure = diagnosis(figures)
    accuracy, straightness, entropy, activation, idle = figure.axes
    assert tuple(straightness.lines[0].get_ydata()) == course.straightness["layers.0"]
    assert tuple(entropy.lines[-1].get_ydata()) == (1.0, 0.7, 0.4)
    assert tuple(activation.lines[0].get_ydata()) == figures.decay.strongest
    assert tuple(activation.lines[1].get_ydata()) == figures.decay.median
    first, second = figures.layers
    assert heights(idle) == [
        0.25,
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


def test_a_panel_in_which_nothing_happens_is_named_and_not_drawn():
    figures = diagnose_stack(6, 3, routing="em")
    [accuracy, *_] = diagnosis(figures).axes
    assert words(accuracy.get_xticklabels()) == ["as trained", "uniform", "random"]
    assert accuracy.get_xlim()[1] < 3  # no room is kept for a baseline

    alive = replace(figures.children, dead=0.0, constant=0.0)
    fed = replace(figures.layers[0].starvation, starved=0.0)
    layer = replace(figures.layers[0], entropy=None, parents=None, starvation=fed)
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
        children=alive,
        iterations=replace(figures.iterations, entropy={"layers.0": (1.0, 0.99)}, straightness={}),
        decay=decay,
    )
    figure = diagnosis(bare)
    assert words(figure.axes[0].get_xticklabels()) == ["as trained"]
    assert len(figure.axes) == 2
    below = "couplings are uniform throughout (entropy 0.99 or more); no capsule is out of use"
    assert figure.get_supxlabel() == f"Not drawn: {below}."
    assert_nothing_cut(figure)

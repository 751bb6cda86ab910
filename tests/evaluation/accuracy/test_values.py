"""Errors of values on numbers worked out by hand."""

import math

import pytest
import torch

from torchcaps.evaluation import value_figures


def test_by_hand():
    true = torch.tensor([[1.0, 10.0], [2.0, 10.0], [3.0, 10.0], [6.0, 10.0]])
    predicted = torch.tensor([[1.0, 10.0], [2.0, 10.0], [4.0, 10.0], [4.0, 14.0]])
    figures = value_figures(true, predicted, ("x", "y"), loss=0.5)

    # Of x: errors 0, 0, 1, -2; deviations from the mean 3 are -2, -1, 0, 3.
    x, y = figures.per_value["x"], figures.per_value["y"]
    assert x == pytest.approx({"r2": 1 - 5 / 14, "mae": 0.75, "rmse": math.sqrt(5 / 4)})
    # y does not vary, and one prediction is wrong.
    assert y == pytest.approx({"r2": 0.0, "mae": 1.0, "rmse": 2.0})
    assert (figures.r2, figures.mae) == pytest.approx(((1 - 5 / 14) / 2, 0.875))
    assert figures.to_dict().keys() == {"r2", "mae", "rmse", "loss", "per_value", "num_samples"}
    assert figures.table().rows[0] == ("mean", "0.3214", "0.875", f"{(1.118033989 + 2) / 2:.4g}")


@pytest.mark.parametrize(("shift", "r2"), [(0.0, 1.0), (1.0, 0.0)])
def test_constant_values(shift, r2):
    true = torch.full((3, 1), 7.0)
    assert value_figures(true, true + shift, ("x",), loss=0.0).r2 == r2


def test_guess_of_the_mean():
    true = torch.arange(5.0).unsqueeze(1)
    assert value_figures(true, torch.full((5, 1), 2.0), ("x",), loss=0.0).r2 == 0.0


@pytest.mark.parametrize(
    ("true", "predicted", "message"),
    [
        (torch.zeros(3, 2), torch.zeros(3, 1), "predicted"),
        (torch.zeros(3, 1), torch.zeros(3, 1), "true"),
    ],
)
def test_refused(true, predicted, message):
    with pytest.raises(ValueError, match=message):
        value_figures(true, predicted, ("x", "y"), loss=0.0)

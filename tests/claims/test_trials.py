"""The smallest budget of protocols: each has the figures that it names."""

from dataclasses import replace

import pytest

from claims.protocol import load_claim
from claims.runner import run_claims


@pytest.mark.parametrize(
    ("name", "arm"),
    [pytest.param("unseen-pairs", "S", marks=pytest.mark.slow), ("slots-take-apart", "R3")],
)
def test_a_trial_has_every_figure(name, arm, tmp_path, no_plots):
    claim = load_claim(name)
    claim = replace(claim, arms={arm: claim.arms[arm]}, seeds=1, rates=())
    [result] = run_claims([claim], tmp_path / "results", work=tmp_path / "work", budget="small")
    assert {*claim.recipe.figures} <= result.figures.keys()

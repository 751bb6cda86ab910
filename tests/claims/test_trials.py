"""The smallest budget of protocols, with a training that is stopped and continued."""

from dataclasses import replace

import pytest

from claims.protocol import load_claim
from claims.runner import run_claims
from torchcaps.training import Interrupted
from training.makers import stop_after


@pytest.mark.parametrize(
    ("name", "arm"),
    [pytest.param("unseen-pairs", "S", marks=pytest.mark.slow), ("slots-take-apart", "R3")],
)
def test_a_trial_that_was_stopped_has_the_figures_of_one_that_was_not(
    name, arm, tmp_path, no_plots
):
    claim = load_claim(name)
    claim = replace(claim, arms={arm: claim.arms[arm]}, seeds=1, rates=())

    def run(folder, *callbacks):
        folder = tmp_path / folder
        options = {"work": folder / "work", "budget": "small", "callbacks": callbacks}
        return run_claims([claim], folder / "results", **options)

    with pytest.raises(Interrupted):
        run("stopped", stop_after(3))
    [stopped] = run("stopped")
    [whole] = run("whole")
    assert stopped.figures == whole.figures
    assert stopped.answers == whole.answers
    assert {*claim.recipe.figures} <= whole.figures.keys()

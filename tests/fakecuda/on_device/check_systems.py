"""Systems on the fake GPU: nothing falls, no step waits, and launches keep to their budgets."""

import json

import pytest

import torchcaps as tc
from fakecuda.systems import BUDGETS, FURTHER, run_system

FAST = ("capsnet", "efficient_capsnet", "resnet20", "capsnet on pairs")
ALL = [*tc.list_models(), *FURTHER]
budgets = json.loads(BUDGETS.read_text())
pytestmark = pytest.mark.filterwarnings("default")


def marked(name, precision):
    """A case, slow unless it is one of a few."""
    is_fast = name in FAST and precision == "bf16"
    return pytest.param(name, precision, marks=[] if is_fast else [pytest.mark.slow])


@pytest.mark.parametrize(
    ("name", "precision"),
    [marked(name, precision) for precision in ("bf16", "fp32") for name in ALL],
)
def test_a_system_runs(name, precision, tmp_path):
    row = run_system(name, precision, tmp_path / "run")
    assert not row["fault"]
    assert row["stopped"]
    assert row["waits"] == budgets[name]["waits"], row["waiting lines"]
    if precision == "bf16":
        launches = budgets[name]["launches"]
        assert row["launches"] <= launches, row["most frequent"]
        # What is won is kept: python -m fakecuda.systems NAME --write
        assert row["launches"] > 0.95 * launches, "the budget can be lowered"

"""Systems on the fake GPU: nothing falls, no step waits, and launches keep to their budgets."""

import json

import pytest

import torchcaps as tc
from fakecuda import gpu
from fakecuda.runs import FP16
from fakecuda.systems import ALL, BUDGETS, run

FAST = "capsnet"
# One of each task, and all metrics.
WITHOUT_FLOAT64 = (
    "canonical_capsules_small",
    "capsnet on pairs",
    "capsnet with everything",
    "scae",
    "segcaps_small",
    "transforming_autoencoder",
    "tree_capsnet",
)
budgets = json.loads(BUDGETS.read_text())
pytestmark = pytest.mark.filterwarnings("default")


def marked(name, precision):
    """A case, slow unless it is the fast one."""
    is_fast = name == FAST and precision == "bf16"
    return pytest.param(name, precision, marks=[] if is_fast else [pytest.mark.slow])


CASES = [marked(name, precision) for precision in ("bf16", "fp32") for name in ALL]
CASES += [marked(name, "fp16") for name in FP16]


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_a_system_runs(name, precision, tmp_path):
    row = run(name, precision, tmp_path / "run")
    assert not row["fault"]
    assert row["stopped"]
    assert row["waits"] == budgets[name]["waits"], row["waiting lines"]
    if precision == "bf16":
        launches = budgets[name]["launches"]
        assert row["launches"] <= launches, row["most frequent"]
        # What is won is kept: python -m fakecuda.systems NAME --write
        assert row["launches"] > 0.95 * launches, "the budget can be lowered"


@pytest.mark.slow
@pytest.mark.parametrize("name", WITHOUT_FLOAT64)
def test_a_system_runs_without_float64(name, tmp_path):
    with gpu.without_float64():
        tc.transfer.widest_float.cache_clear()
        row = run(name, "fp32", tmp_path / "run")
    tc.transfer.widest_float.cache_clear()
    assert not row["fault"]

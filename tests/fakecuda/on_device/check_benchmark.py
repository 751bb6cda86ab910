"""The stages that measure a GPU, on the fake one and small."""

import json

import pytest
from benchmarks.gpu_stages import SMALL, STAGES, run_stages

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def test_every_stage_writes_its_file(tmp_path):
    documents = run_stages(tmp_path / "gpu", 60, sizes=SMALL)
    assert [*documents] == [stage.name for stage in STAGES]
    for name, document in documents.items():
        assert json.loads((tmp_path / "gpu" / f"{name}.json").read_text()) == document
        assert "failure" not in document, document.get("traceback")
    rows = documents["correctness"]["rows"]
    errors = {row["impl"]: row["ratio"] for row in rows if "ratio" in row}
    assert errors["blocked"] < 1
    assert documents["systems"]["failures"] == 0
    assert documents["mnist"]["skipped"].endswith("MNIST is not there (make gpu-bundle)")
    assert documents["backbone"]["ratio"] > 0
    times = {row["layer"] for row in documents["step"]["rows"] if "ms" in row}
    assert {"limit", "textbook", "blocked"} <= times


def test_a_stage_without_time_is_left_out(tmp_path):
    documents = run_stages(tmp_path, 0, ["step"])
    assert documents["step"]["skipped"] == "it takes 6 minutes, and fewer are left"

"""The stages that measure a GPU, on the fake one and small, without packages of the command line."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from unittest import mock

import pytest
from benchmarks.gpu import NAMES, STAGES, run_stages

from benchmarks import gpu

# What there is beside torch, and what `make gpu-bundle` brings.
PACKAGES = """
    filelock fsspec jinja2 llvmlite markupsafe mpmath networkx numba numpy setuptools sympy torch
    triton typing_extensions
    jaxtyping markdown_it_py mdurl pillow pygments rich safetensors scipy torchcaps wadler_lindig
"""
# Runs the command on the fake GPU, where all other packages are missing.
CODE = f"""
import os, sys
from importlib.metadata import packages_distributions
for package, distributions in packages_distributions().items():
    names = {{name.lower().replace("-", "_") for name in distributions}}
    if not names & set({PACKAGES.split()}):
        sys.modules[package] = None
from fakecuda import gpu
from fakecuda.kernels import stand_ins
from benchmarks.gpu import main
%s
with stand_ins():
    sys.exit(main())
"""
COMMAND = [sys.executable, "-c", CODE % "", "--small"]
UNCOMPILED = ("compiled", "graphs")  # ways that the fake GPU has no compiler for
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def read(folder, stage):
    """The file of a stage."""
    return json.loads((folder / f"{stage}.json").read_text())


def test_every_stage_measures(tmp_path, capfd):
    assert run_stages(COMMAND, tmp_path, 25) == 1  # for the networks that cannot be compiled
    documents = {name: read(tmp_path, name) for name in NAMES}
    printed = capfd.readouterr().out
    for stage in STAGES:
        document = documents[stage.name]
        assert "failure" not in document
        assert document["expectation"] == stage.expectation
        assert f"{stage.name}: expected: {stage.expectation}\n" in printed
        assert f"{stage.name}: ratio: {document['ratio']}\n" in printed
    rows = {name: document["rows"] for name, document in documents.items()}
    assert 0 < documents["correctness"]["ratio"] < 1
    assert failures(rows["correctness"]) == failures(rows["systems"]) == []
    assert documents["systems"]["ratio"] == 0
    names = {row["name"] for row in rows["systems"]}
    assert {"a run that repeats", "exhausted memory", "cnn_baseline beside the CPU"} <= names

    for row in rows["graph"]:
        assert row["ms"] > 0
        assert ("replay ms" in row) == (row["graph"] == "yes")
    assert 0 < rows["graph"][0]["host ms"] < rows["graph"][0]["replay ms"]

    for row in rows["peers"]:
        assert ("failure" in row) == (row["way"] in UNCOMPILED)
    assert rows["peers"][-1]["ratio"] == pytest.approx(1.3 / rows["peers"][-1]["lead"])

    *trainings, summary = rows["accuracy"]
    assert [row["seed"] for row in trainings[1:]] == [0, 1]
    for row in trainings:
        assert row["no graph"] == ""
        assert 0 < row["test accuracy"] < 1
        assert row["curve"][-1][0] > 0
    assert summary["failure"] == "half of the trainings have no 99.5 %"

    first, last = rows["records"]
    assert "ratio" not in first
    assert first["together"] == first["each"][0]
    assert len(last["each"]) == 2
    assert last["ratio"] == pytest.approx((1 - last["together"]) / 0.003)


def failures(rows):
    """The failures of rows."""
    return [row["failure"] for row in rows if "failure" in row]


def test_the_minutes_of_all_stages_are_twelve():
    assert sum(stage.minutes for stage in STAGES) <= 12


def test_a_stage_that_breaks_stops_no_other(tmp_path, capfd):
    crash = CODE % 'if "correctness" in sys.argv: os.abort()'
    command = [sys.executable, "-c", crash, "--small"]
    assert run_stages(command, tmp_path, 25, ["correctness", "graph"]) == 1
    assert read(tmp_path, "correctness")["failure"] == "its process ended with status -6"
    assert "its process ended with status -6" in capfd.readouterr().out
    assert read(tmp_path, "graph")["ratio"] > 0
    assert not (tmp_path / "peers.json").exists()


def test_a_stage_without_time_is_not_begun(tmp_path):
    assert run_stages(COMMAND, tmp_path, 0, ["peers"]) == 1
    assert read(tmp_path, "peers")["failure"] == "it was not begun"


def test_a_stage_is_cut_at_its_minutes(tmp_path):
    with mock.patch.object(gpu, "STAGES", [replace(STAGES[NAMES.index("peers")], minutes=0.001)]):
        assert run_stages(COMMAND, tmp_path, 25, ["peers"]) == 1
    assert read(tmp_path, "peers")["failure"] == "it was cut after 0 s"


def test_rows_are_there_when_a_stage_is_killed(tmp_path):
    words = ["--stage", "peers", "--output", str(tmp_path)]
    with subprocess.Popen([*COMMAND, *words]) as process:
        while not ((tmp_path / "peers.json").exists() and read(tmp_path, "peers")["rows"]):
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    document = read(tmp_path, "peers")
    assert document["failure"] == "it was killed"
    assert document["rows"][0]["network"] == "einsum"
    assert document["rows"][0]["ms"] > 0

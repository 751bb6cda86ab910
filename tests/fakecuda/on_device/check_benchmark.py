"""The stages that measure a GPU, on the fake one and small, without packages of the command line."""

import json
import subprocess
import sys
import time

import pytest
from benchmarks.gpu import NAMES, STAGES, run_stages

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
from benchmarks.gpu import main
%s
sys.exit(main())
"""
COMMAND = [sys.executable, "-c", CODE % "", "--small"]
UNCOMPILED = ("compiled", "triton")  # layers that the fake GPU has no compiler for
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def read(folder, stage):
    """The file of a stage."""
    return json.loads((folder / f"{stage}.json").read_text())


def test_every_stage_measures(tmp_path, capfd):
    assert run_stages(COMMAND, tmp_path, 25) == 1  # for the layers that cannot be compiled
    documents = {name: read(tmp_path, name) for name in NAMES}
    printed = capfd.readouterr().out
    for stage in STAGES:
        document = documents[stage.name]
        assert "failure" not in document
        assert document["expectation"] == stage.expectation
        assert f"{stage.name}: expected: {stage.expectation}\n" in printed
        assert f"{stage.name}: ratio: {document['ratio']}\n" in printed
    assert 0 < documents["correctness"]["ratio"] < 1
    assert documents["systems"]["ratio"] == 0
    names = {row["name"] for row in documents["systems"]["rows"]}
    assert {"a run that repeats", "exhausted memory", "cnn_baseline beside the CPU"} <= names
    for row in documents["step"]["rows"]:
        assert ("failure" in row) == (row["layer"] in UNCOMPILED)
    assert documents["mnist"]["ratio"] > 0
    assert documents["backbone"]["ratio"] > 0


def test_a_stage_that_breaks_stops_no_other(tmp_path, capfd):
    crash = CODE % 'if "correctness" in sys.argv: os.abort()'
    command = [sys.executable, "-c", crash, "--small"]
    assert run_stages(command, tmp_path, 25, ["correctness", "backbone"]) == 1
    assert read(tmp_path, "correctness")["failure"] == "its process ended with status -6"
    assert "its process ended with status -6" in capfd.readouterr().out
    assert read(tmp_path, "backbone")["ratio"] > 0
    assert not (tmp_path / "step.json").exists()


def test_a_stage_without_time_is_not_begun(tmp_path):
    assert run_stages(COMMAND, tmp_path, 0, ["step"]) == 1
    assert read(tmp_path, "step")["failure"] == "it was not begun"


def test_rows_are_there_when_a_stage_is_killed(tmp_path):
    words = ["--stage", "step", "--output", str(tmp_path)]
    with subprocess.Popen([*COMMAND, *words]) as process:
        while not ((tmp_path / "step.json").exists() and read(tmp_path, "step")["rows"]):
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    document = read(tmp_path, "step")
    assert document["failure"] == "it was killed"
    assert document["rows"][0]["layer"] == "limit"
    assert document["rows"][0]["ms"] > 0

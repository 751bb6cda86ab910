"""A system from one file outside the package works in every command, and no other file names one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

import torchcaps
from torchcaps.models import list_models
from torchcaps.training import Run

FILE = Path(__file__).with_name("own_system.py")
SOURCE = Path(torchcaps.__file__).parent
ABOVE = (
    "training",
    "evaluation",
    "viz",
    "reporting",
    "reproduction",
    "explorer",
    "cli",
)

# All commands in one process, which is not this one: what the file registers stays there.
COMMANDS = """
import contextlib, io, json, sys
from torchcaps.cli.main import main

def command(*words):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = main([*words, "--import", sys.argv[1]])
    return [status, out.getvalue()]

open("my.stripes", "w").write("48")
CLASSIFIER = (
    "train --callbacks tally capsnet --data my.stripes --epochs 1 --loss squared "
    "--optimizer signs --schedule falling --option channels=8 --option primary_types=2 "
    "--output classifier --json"
)
LINES = {
    "train": "train --metrics minimum_likeness denoiser --data stripes --epochs 2 --output run --json",
    "classifier": CLASSIFIER,
    "classifier exported": "export classifier --output classifier.saved --json",
    "evaluate": "evaluate run --json",
    "report": "report run",
    "reproduce": "reproduce noise-goes --json",
    "models": "models --json",
}
found = {name: command(*line.split()) for name, line in LINES.items()}
from PIL import Image
Image.new("L", (20, 18), 128).save("gray.png")
found["predict"] = command("predict", "run", "gray.png", "--json")

import base64
from torchcaps.explorer.answers import ANSWERS
from torchcaps.explorer.page import describe_run
served, content = describe_run("run", "denoiser")
found["about"] = content.head
found["look"] = ANSWERS["look"](served, base64.b64encode(bytes(4 * 18 * 20)).decode())
json.dump(found, open("found.json", "w"))
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    ran = subprocess.run(
        [sys.executable, "-c", COMMANDS, str(FILE)],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return folder, json.loads((folder / "found.json").read_text())


def test_every_command_takes_it(outcome):
    answers = {name: answer for name, answer in outcome[1].items() if isinstance(answer, list)}
    assert len(answers) == 8
    for name, (status, out) in answers.items():
        assert status == 0 and out, name


def test_its_figures_and_pictures_are_its_own(outcome):
    folder, outcomes = outcome
    figures = json.loads(outcomes["evaluate"][1])
    assert figures.keys() >= {"loss", "likeness", "num_samples"}
    assert figures["likeness"] > 0.7
    assert (folder / "run" / "plots" / "noise.png").exists()
    assert (folder / "run" / "plots" / "curves.png").exists()
    epoch = Run(folder / "run").epochs[-1]
    assert {"train_absolute", "train_ink", "val_likeness", "val_minimum_likeness"} <= epoch.keys()
    page = (folder / "run" / "report.html").read_text().lower()
    for words in ("noise goes", "denoise is done.", "likeness", "minimum"):
        assert words in page


def test_an_experiment_measures_it(outcome):
    [result] = json.loads(outcome[1]["reproduce"][1])
    assert 0 <= result["figures"]["steadiness"] <= 1
    assert result["shown"] == ["likeness", "minimum_likeness", "steadiness"]
    assert 0 <= result["figures"]["minimum_likeness"] <= result["figures"]["likeness"]


def test_it_predicts_what_its_task_says(outcome):
    [row] = json.loads(outcome[1]["predict"][1])
    assert row["path"] == "gray.png" and 0 <= row["ink"] <= 1


def test_a_classifier_takes_one_of_each_kind(outcome):
    folder, _ = outcome
    [epoch] = Run(folder / "classifier").epochs
    steps, lr = (folder / "tally.txt").read_text().split()
    assert "train_squared" in epoch  # the loss
    assert int(steps) == epoch["step"]  # the callback
    assert float(lr) == pytest.approx(0.001 / epoch["step"])  # the schedule
    config = json.loads((folder / "classifier" / "config.json").read_text())
    assert config["optimizer"]["name"] == "signs"
    assert config["data"]["name"] == "my.stripes"  # the data format


def test_a_classifier_leaves_in_its_own_format(outcome):
    folder, outcomes = outcome
    exported = json.loads(outcomes["classifier exported"][1])
    assert exported["format"] == "saved"
    assert exported["bytes"] == (folder / "classifier.saved").stat().st_size
    names = ["left", "middle", "right"]
    assert (folder / "exported.txt").read_text() == f"classifier {names}"


def test_the_explorer_answers_for_it(outcome):
    _, outcomes = outcome
    about = outcomes["about"]
    assert about["classes"] == ["capsule 1", "capsule 2", "capsule 3", "capsule 4"]
    assert (about["poses"], about["decoder"]) == (True, True)
    assert outcomes["look"].keys() == {"lengths", "poses"}


def systems():
    """Names of models, and of their classes, as code would have them."""
    classes = {"CapsNet", "MatrixCaps", "TransformingAutoencoder", "CNN", "Transforming"}
    return {*list_models(), *classes}


@pytest.mark.parametrize("package", ABOVE)
def test_no_file_above_the_tasks_names_a_system(package):
    for path in (SOURCE / package).rglob("*.py"):
        with open(path, "rb") as file:
            tokens = list(tokenize.tokenize(file.readline))
        named = {
            token.string.strip("\"'")
            for token in tokens
            if token.type in (tokenize.NAME, tokenize.STRING)
        }
        assert not named & systems(), path

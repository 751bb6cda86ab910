"""Every system through the ordinary commands: train, stop and resume, evaluate, predict, report, perturb, explore.

And by two processes, of which each starts this file.
"""

from __future__ import annotations

import base64
import json
import math
import os
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import torchcaps as tc
from e2e.commands import launch
from fakecuda import runs
from torchcaps.cli.main import main
from torchcaps.data import load_dataset
from torchcaps.distributed import hard_exit, init
from torchcaps.explorer.answers import ANSWERS
from torchcaps.explorer.page import describe_run
from torchcaps.training import train
from training.makers import assert_resumes

pytestmark = pytest.mark.slow
# These have data and pictures of their own: see tests/tasks.
PIXELS = ("segcaps", "unet")
SYSTEMS = [
    name
    for name in tc.list_models()
    if tc.models.model_info(name).num_classes and not name.startswith(PIXELS)
]
BEYOND = (
    "segcaps_small",
    "unet_matched",
    "scae",
    "canonical_capsules_small",
    "transforming_autoencoder",
)


def settings(name, **changes):
    """Twelve steps of a system in small sizes."""
    config = runs.settings(name, "fp32")
    return config.updated(**({"epochs": 2, "batch_size": 4, "device": "cpu"} | changes))


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_command_takes_every_system(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert_resumes(settings(name), tmp_path, step=7)
    image = load_dataset("digits", "test").images[0, 0]
    Image.fromarray(image.numpy()).save("one.png")
    assert main(["evaluate", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_samples"] == 1000
    assert main(["predict", "run", "one.png", "--json"]) == 0
    assert main(["report", "run", "--output", "report.html"]) == 0
    spec = tc.load("run").spec
    status = 0 if spec.decoder else 1
    assert main(["perturb", "run"]) == status
    assert main(["reconstruct", "run"]) == status
    served, content = describe_run("run", name)
    blank = base64.b64encode(bytes(4 * math.prod(served.shape))).decode()
    answer = ANSWERS["look"](served, blank)
    assert len(base64.b64decode(answer["lengths"])) == 4 * 10
    assert ("poses" in answer) == content.head["poses"] == spec.pose


# Three steps of SGD, where rounding never changes a sign. After 14, EM routing makes 1e-3 of it.
THREE_STEPS = {"optimizer": "sgd", "momentum": 0.0, "lr": 0.003, "epochs": 1, "batch_size": 8}


@pytest.fixture(scope="module")
def by_two(tmp_path_factory):
    """The folder of every system, trained by two processes, and their output."""
    folder = tmp_path_factory.mktemp("by-two")
    return folder, "".join(launch(Path(__file__), folder, cwd=folder).communicate())


def has_dropout(model):
    return any(isinstance(module, torch.nn.Dropout) for module in model.modules())


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [*SYSTEMS, *BEYOND])
def test_two_processes_train_a_system_as_one_does(name, by_two, tmp_path):
    folder, output = by_two
    file = folder / name / "model.safetensors"
    assert file.exists(), output
    train(settings(name, **THREE_STEPS), tmp_path / "one")
    weights = load_file(file)
    expected = load_file(tmp_path / "one" / "model.safetensors")
    # Names of clusters depend on ten images.
    weights.pop("names", None)
    expected.pop("names", None)
    # Three steps of EM routing enlarge a change of the gradient by 1e-6 to 1e-4 of a weight.
    tolerance = 1e-2 if has_dropout(tc.load(folder / name)) else 1e-3
    torch.testing.assert_close(weights, expected, atol=tolerance, rtol=1e-3)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with init(os.environ, "cpu"):
        for system in (*SYSTEMS, *BEYOND):
            train(settings(system, **THREE_STEPS), Path(sys.argv[1]) / system)
    hard_exit(0)

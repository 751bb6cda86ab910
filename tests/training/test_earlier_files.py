"""Run folders of earlier versions load, give the answers that they gave, and go on."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import torchcaps as tc
from torchcaps.training import RunFolder, train

RUNS = Path(__file__).parents[1] / "fixtures" / "earlier"


@pytest.fixture(params=["capsnet", "capsnet_em", "matrix_caps"])
def earlier(request, tmp_path):
    """A run that was stopped after 6 of 8 steps, when the matrices of a layer stood in the layer itself."""
    return Path(shutil.copytree(RUNS / request.param, tmp_path / request.param))


def test_answers_are_those_of_then(earlier):
    model, expected = tc.load(earlier), load_file(earlier / "expected.safetensors")
    with torch.inference_mode(), tc.record_routing(model) as record:
        capsules = model.capsules(expected["images"])
    torch.testing.assert_close(capsules.pose, expected["pose"], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(capsules.activation, expected["activation"], atol=1e-5, rtol=1e-4)
    for name, recorded in record.last().items():
        torch.testing.assert_close(recorded.coupling, expected[f"coupling.{name}"], atol=1e-4, rtol=1e-3)


def test_a_training_goes_on(earlier):
    config = RunFolder.open(earlier).config
    run = train(config() if callable(config) else config, earlier, resume=True)
    expected = load_file(earlier / "expected.safetensors")
    with torch.inference_mode():
        found = tc.load(run.path)(expected["images"])
    torch.testing.assert_close(found, expected["finished"], atol=1e-3, rtol=1e-2)

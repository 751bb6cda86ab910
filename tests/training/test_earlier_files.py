"""Run folders of earlier versions load, give the answers that they gave, and go on."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import torchcaps as tc
from torchcaps.errors import RunError
from torchcaps.reporting import finish_run, open_run
from torchcaps.training import RunFolder, TrainConfig, train

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
        torch.testing.assert_close(
            recorded.coupling, expected[f"coupling.{name}"], atol=1e-4, rtol=1e-3
        )


def test_a_training_goes_on(earlier):
    config = RunFolder.open(earlier).config
    run = train(config() if callable(config) else config, earlier, resume=True)
    expected = load_file(earlier / "expected.safetensors")
    with torch.inference_mode():
        found = tc.load(run.path)(expected["images"])
    torch.testing.assert_close(found, expected["finished"], atol=1e-3, rtol=1e-2)


@pytest.fixture
def early(tmp_path):
    """A finished run of an early version, which trained these models by a loop of their own."""
    return Path(shutil.copytree(RUNS / "transforming", tmp_path / "early"))


def test_an_early_model_gives_the_answers_that_it_gave(early):
    model, expected = tc.load(early), load_file(early / "expected.safetensors")
    with torch.inference_mode():
        capsules, drawn = (
            model.capsules(expected["images"]),
            model(expected["images"], expected["shift"]),
        )
    torch.testing.assert_close(capsules.pose, expected["pose"], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(capsules.activation, expected["activation"], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(drawn, expected["drawn"], atol=1e-5, rtol=1e-4)


def test_an_early_run_is_measured(early):
    config = RunFolder.open(early).config()
    assert (config.model.name, config.optimizer.lr) == ("transforming_autoencoder", 2e-3)
    assert config.model.options["capsules"] == 2
    task, images = open_run(early)
    assert (task.name, len(images)) == ("transform", 1000)
    assert finish_run(RunFolder.open(early)).to_dict()["num_samples"] == 1000
    assert (early / "plots" / "triplets.png").exists()


def test_an_early_training_is_refused_in_one_sentence(early):
    before = {path: path.read_bytes() for path in early.rglob("*.safetensors")}
    with pytest.raises(
        RunError,
        match="was written by an early version; its model is kept, but this training cannot",
    ):
        train(TrainConfig(), early, resume=True)
    assert {path: path.read_bytes() for path in early.rglob("*.safetensors")} == before

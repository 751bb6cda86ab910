"""Folders for the Hugging Face Hub: a round trip by a local folder, and by a hub of two functions."""

import json
import shutil
import socket

import huggingface_hub
import pytest
import torch
from safetensors import safe_open

import torchcaps as tc
from torchcaps.errors import ArgumentError, ExportError, RunError, TrainingError
from torchcaps.exporting import export, push
from torchcaps.training.run import is_run

from .test_export import small_model


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*address):
        raise AssertionError(f"a connection to {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A folder in place of the Hub."""
    folder = tmp_path / "hub"

    def create(api, repo_id, *, private, exist_ok):
        (folder / repo_id).mkdir(parents=True, exist_ok=exist_ok)
        (folder / repo_id / "private").write_text(str(private))
        return f"https://hub/{repo_id}"

    def upload(api, *, repo_id, folder_path):
        shutil.copytree(folder_path, folder / repo_id, dirs_exist_ok=True)

    def download(repo_id, *, revision, allow_patterns):
        assert allow_patterns == ["*.json", "*.safetensors"]
        if not (folder / repo_id).exists():
            raise FileNotFoundError(f"no repository\n{repo_id}")
        (folder / repo_id / "revision").write_text(str(revision))
        return str(folder / repo_id)

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return folder


def predictions(run, pictures):
    return tc.Predictor(run, unknown_below="auto")(pictures)


def test_a_run_goes_to_the_hub_and_back(run, bars, hub, tmp_path):
    tc.evaluate(run, output=run)
    pictures = tc.data.load_dataset(bars, "test").images
    exported = tc.export(run, tmp_path / "out", format="hub")
    assert (exported.difference, exported.batches) == (0, (1, 3, 32, 64))
    folder = exported.path
    names = ["README.md", "config.json", "model.safetensors"]
    assert sorted(file.name for file in folder.iterdir()) == names
    assert exported.bytes == sum(file.stat().st_size for file in folder.iterdir())
    assert push(folder, "me/bars", private=True) == "https://hub/me/bars"
    assert (hub / "me/bars/private").read_text() == "True"
    expected = predictions(run, pictures)
    for place in (folder, "hf:me/bars", "hf:me/bars@v1"):
        assert predictions(place, pictures) == expected
        assert tc.load(place).classes == tc.load(run).classes
    assert (hub / "me/bars/revision").read_text() == "v1"
    assert not is_run(folder)
    assert tc.evaluate(folder, bars).accuracy == tc.evaluate(run).accuracy


def test_the_card_has_the_figures_of_the_run(run, hub, tmp_path):
    figures = tc.evaluate(run, output=run).to_dict()
    folder = export(run, tmp_path / "out", format="hub").path
    config = json.loads((folder / "config.json").read_text())
    assert (config["model"], config["classes"]) == ("capsnet", ["0", "1", "2"])
    card = huggingface_hub.ModelCard.load(folder / "README.md")
    assert (card.data.library_name, card.data.pipeline_tag) == ("torchcaps", "image-classification")
    measured = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert measured["accuracy"] == figures["accuracy"]
    assert measured["loss"] == figures["loss"]
    assert {result.dataset_name for result in card.data.eval_results} == {"bars"}
    assert "- test images: 12\n" in card.text and "- epochs: 3 of 3\n" in card.text
    assert "bars.npz" not in card.content + str(config)  # where it lies is for nobody else
    assert "hf:OWNER/NAME" in card.text
    push(folder, "me/bars")
    assert 'tc.load("hf:me/bars")' in (hub / "me/bars/README.md").read_text()


def test_weights_in_half_the_bits(tmp_path):
    model = small_model()
    exported = export(model, tmp_path / "half", format="hub", half=True)
    whole = export(model, tmp_path / "whole", format="hub")
    assert exported.bytes < 0.6 * whole.bytes
    with safe_open(tmp_path / "half" / "model.safetensors", framework="pt") as file:
        dtypes = {file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    assert dtypes == {"F16"}
    images = torch.rand(5, *model.image_shape)
    with torch.no_grad():
        answers = tc.load(tmp_path / "half")(images)
        torch.testing.assert_close(answers, model(images), atol=2 * exported.loss + 1e-6, rtol=0)
    card = (tmp_path / "half" / "README.md").read_text()
    assert "- weights: float16" in card and "The run has no evaluation." in card


def test_what_the_hub_does_not_take(run, hub, tmp_path, monkeypatch):
    model = small_model()
    with pytest.raises(ArgumentError, match="int8: the format hub has none"):
        export(model, tmp_path / "out", format="hub", int8=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").touch()
    with pytest.raises(TrainingError, match="what was there before is unchanged"):
        export(model, tmp_path / "out", format="hub")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["mine.txt"]
    assert not list(tmp_path.glob(".*.partial"))
    with pytest.raises(ArgumentError, match=r"folder: expected one with a README\.md"):
        push(tmp_path / "out", "me/bars")
    with pytest.raises(RunError, match=r"hf:me/absent: cannot be fetched \(no repository"):
        tc.load("hf:me/absent")
    (tmp_path / "out" / "README.md").touch()
    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", lambda *_, **__: 1 / 0)
    with pytest.raises(ExportError, match=r"me/bars: cannot be uploaded \(division by zero"):
        push(tmp_path / "out", "me/bars")
    monkeypatch.setattr("torchcaps.errors.find_spec", lambda name: None)
    with pytest.raises(ArgumentError, match=r"pip install 'torchcaps\[hub\]'"):
        export(model, tmp_path / "new", format="hub")


def test_a_folder_that_answers_otherwise_is_not_written(tmp_path, monkeypatch):
    from torchcaps.exporting import hub as module

    def save(model, path):
        with torch.no_grad():
            next(model.parameters()).add_(0.1)
        return tc.save(model, path)

    monkeypatch.setattr(module, "save", save)
    with pytest.raises(ExportError, match="expected the model's outputs within 1e-05"):
        export(small_model(), tmp_path / "out", format="hub")
    assert not list(tmp_path.iterdir())

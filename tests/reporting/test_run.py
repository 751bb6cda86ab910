from __future__ import annotations

import json

import pytest
import torch
from PIL import Image

from checks import column
from torchcaps import viz
from torchcaps.data import Dataset, masked_set, match_classes
from torchcaps.errors import DataError, RunError
from torchcaps.reporting import api, evaluate, evaluation_folder, open_task
from torchcaps.training import Run
from training.makers import leftovers, write_bars

PLOTS = ("activations", "calibration", "confusion_matrix", "curves", "per_class", "reconstructions")


def names_of_plots(run):
    """Names of all files in the folder of plots, without their ending."""
    return {path.stem for path in (run / "plots").iterdir()}


def test_a_run_opens_with_its_own_test_images(run, bars):
    task, images = open_task(run)
    assert (task.name, task.loss) == ("classify", "margin")
    assert task.model.classes == images.classes == ("0", "1", "2")
    assert len(images) == 12
    assert len(open_task(run, split="train")[1]) == 48


def test_other_images_are_brought_to_the_models_size_and_channels(run, tmp_path):
    bars = write_bars(tmp_path / "other.npz", count=30, size=(30, 42))
    _, images = open_task(run, data=str(bars))
    assert images.images.shape[1:] == (1, 18, 20)


def test_data_with_some_of_the_classes_in_another_order_are_matched_by_name(run):
    data = Dataset(
        torch.zeros(6, 1, 18, 20),
        {"label": torch.tensor([0, 0, 0, 1, 1, 1])},
        ("2", "0"),
        "two classes",
    )
    _, images = open_task(run, data=data)
    assert images.classes == ("0", "1", "2")
    assert images.labels.tolist() == [2, 2, 2, 0, 0, 0]
    evaluation = evaluate(run, data)
    accuracies = column(evaluation.per_class, "accuracy")
    assert accuracies[1] is None
    assert sorted(accuracies[::2]) in ([0, 0], [0, 1])  # equal images have equal answers
    assert evaluation.to_dict()["per_class"][1]["accuracy"] is None
    assert evaluation.balanced_accuracy == sum(accuracies[::2]) / 2


def test_images_of_classes_that_the_model_does_not_know_are_refused_by_name(run):
    labels = torch.tensor([0, 1, 2, 0])
    data = Dataset(
        torch.zeros(4, 1, 18, 20), {"label": labels}, ("0", "owl", "yak", "emu"), "animals"
    )
    with pytest.raises(DataError) as raised:
        open_task(run, data=data)
    assert str(raised.value) == (
        "animals: there are images of owl, yak, which the model does not know; "
        "its 3 classes are 0, 1, 2"
    )


def test_a_class_without_images_need_not_be_known(run):
    data = Dataset(
        torch.zeros(2, 1, 18, 20), {"label": torch.tensor([1, 1])}, ("owl", "2"), "one of two"
    )
    assert open_task(run, data=data)[1].labels.tolist() == [2, 2]


def test_masks_are_matched_with_their_labels():
    masks = torch.tensor([[[0, 1], [2, 2]]], dtype=torch.uint8)
    images = masked_set(torch.zeros(1, 1, 2, 2), masks, ("ground", "cat", "dog"), "masks")
    matched = match_classes(images, ("ground", "dog", "owl", "cat"))
    assert matched.targets["mask"].tolist() == [[[0, 3], [1, 1]]]
    assert matched.targets["mask"].dtype == torch.uint8
    assert matched.labels.tolist() == [1]
    with pytest.raises(DataError, match="masks: there are images of cat, which"):
        match_classes(images, ("ground", "dog"))


def test_a_model_file_needs_the_name_of_its_data(run, bars):
    with pytest.raises(
        RunError, match="a model file does not say what data it was trained on; give --data"
    ):
        open_task(run / "model.safetensors")
    assert len(open_task(run / "model.safetensors", data=str(bars))[1]) == 12


def test_a_model_alone_in_a_folder_has_no_data_of_its_own(run):
    (run / "config.json").unlink()
    with pytest.raises(RunError, match="does not say what data it was trained on; give --data"):
        open_task(run)


@pytest.mark.parametrize(
    ("data", "split", "expected"),
    [
        (None, "test", "run"),
        (None, "train", "run/evaluations/own-train"),
        ("digits", "test", "run/evaluations/digits-test"),
        ("some/where/photos.npz", "test", "run/evaluations/photos-test"),
    ],
)
def test_an_evaluation_has_a_folder_by_its_data_and_split(run, data, split, expected):
    assert evaluation_folder(run, data, split) == run.parent / expected
    assert evaluation_folder(run / "model.safetensors", data, split) == run.parent / expected


def test_finishing_writes_the_figures_and_every_plot(run):
    evaluation = evaluate(Run(run), output=run)
    written = json.loads((run / "evaluation.json").read_text())
    assert written == json.loads(json.dumps(evaluation.to_dict()))
    assert {"accuracy", "error", "per_class", "num_samples"} <= written.keys()
    assert names_of_plots(run) == {*PLOTS}
    for path in (run / "plots").iterdir():
        with Image.open(path) as image:
            assert image.format == "PNG"
            assert min(image.size) > 100
    assert leftovers(run) == []


def test_the_curves_compare_like_with_like(run, monkeypatch):
    points = []

    def draw(rows, **names):
        points.extend(rows)
        assert names == {"loss": "margin", "score": "accuracy"}
        return viz.canvas.new_figure(1, 1)

    monkeypatch.setattr(viz, "curves", draw)
    Run.open(run).curves()
    rows = Run.open(run).epochs
    assert column(points, "epoch") == [1, 2, 3]
    assert column(points, "train_loss") == column(rows, "train_margin")
    assert column(points, "val_loss") == column(rows, "val_loss")


def test_without_matplotlib_there_are_figures_and_no_plots(run, monkeypatch):
    monkeypatch.setattr(api, "can_plot", lambda: False)
    evaluate(Run(run), output=run)
    assert (run / "evaluation.json").exists()
    assert not (run / "plots").exists()


@pytest.mark.slow
def test_a_model_without_decoder_has_every_plot_but_reconstructions(blind):
    evaluate(Run(blind), output=blind)
    assert names_of_plots(blind) == {*PLOTS} - {"reconstructions"}


def test_a_folder_that_cannot_be_written_to_is_named(run, bars):
    (run / "file").write_text("mine")
    with pytest.raises(RunError, match="file/deep: the folder cannot be made"):
        evaluate(run, output=run / "file" / "deep")
    assert (run / "file").read_text() == "mine"

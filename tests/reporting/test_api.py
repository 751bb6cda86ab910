"""What is measured of a module, a run or its folder, and what is drawn of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from PIL import Image

import torchcaps as tc
from checks import column
from data.makers import picture
from torchcaps import viz
from torchcaps.data import Dataset, load_dataset, masked_set, match_classes
from torchcaps.errors import ArgumentError, DataError, RunError
from torchcaps.evaluation import score
from torchcaps.reporting import (
    api as pictures,
    evaluate,
    evaluation_folder,
    open_task,
    perturb_run,
    reconstruct_run,
)
from torchcaps.training import Run
from training.makers import leftovers, write_bars


@pytest.fixture(scope="module")
def model(trained):
    return tc.load(trained)


@pytest.fixture(scope="module")
def images(bars):
    return load_dataset(str(bars), "test")


def test_a_model_and_a_run_are_evaluated_alike(trained, model, bars, images):
    evaluation = tc.evaluate(trained)
    arrays = (images.images.numpy(), images.labels.numpy())
    for repeated in (
        tc.evaluate(Run(trained)),
        tc.evaluate(model, images),
        tc.evaluate(model, arrays),
        tc.evaluate(model, str(bars)),
        tc.evaluate(trained / "model.safetensors", bars),
    ):
        assert repeated.to_dict() == evaluation.to_dict()
    assert evaluation.accuracy == evaluation.to_dict()["accuracy"]
    assert not (trained / "evaluation.json").exists()


def test_a_model_alone_has_no_data(model):
    with pytest.raises(ArgumentError, match="^data: "):
        tc.evaluate(model)


def test_a_module_that_declares_nothing_is_a_classifier(images):
    linear = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(20 * 18, 3))
    assert 0 <= tc.evaluate(linear, images).accuracy <= 1


def test_predictions_in_batches_are_those_of_an_evaluation(model, images):
    rows = tc.predict(model, images.images.numpy(), batch_size=5)
    predictions = map(images.classes.index, column(rows, "label"))
    assert list(predictions) == tc.evaluate(model, images).predictions.tolist()


def test_routing_is_diagnosed(trained, model, images):
    diagnosis = tc.diagnose(trained, count=8)
    assert diagnosis.verdicts() == tc.diagnose(model, images, count=8).verdicts()
    comparison = tc.diagnose(model, images, baseline=trained, count=8)
    assert comparison.baseline is not None
    assert comparison.baseline.difference == 0


def answers(*rows):
    return torch.tensor(rows, dtype=torch.bool)


def test_booleans_are_compared_by_model_and_by_method():
    right = [1] * 300
    wrong = [0] * 300
    comparison = tc.compare(answers(right)[0], answers(wrong)[0])
    assert (comparison.outcome, comparison.difference) == ("first", 1.0)
    assert comparison.interval[0] <= 1.0 <= comparison.interval[1]
    assert comparison.p_value < 0.05
    array = answers(right).numpy()
    assert tc.compare(array, array, margin=0.05).outcome == "equivalent"
    methods = tc.compare(answers(wrong, wrong), answers(right, right))
    assert (methods.outcome, methods.first) == ("second", (0.0, 0.0))


@pytest.mark.parametrize("bad", [torch.ones(3), torch.ones(1, 2, 3, dtype=torch.bool), 5])
def test_answers_that_are_no_table_of_booleans_are_refused(bad):
    with pytest.raises((ArgumentError, TypeError)):
        tc.compare(bad, answers([1, 0, 1]))


def test_evaluations_are_compared_on_the_same_images():
    labels = torch.tensor([0, 1, 0])
    good = score(torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.7, 0.1]]), labels, ("a", "b"))
    bad = score(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.1, 0.7]]), labels, ("a", "b"))
    comparison = tc.compare(good, bad)
    assert (comparison.only_first, comparison.only_second) == (2, 0)
    methods = tc.compare([good, good], [bad, good, bad])
    assert methods.first == (1.0, 1.0)
    assert methods.second == pytest.approx((1 / 3, 1.0, 1 / 3))
    with pytest.raises(ArgumentError):
        tc.compare([good, good], [bad])
    shorter = score(torch.eye(2), labels[:2], ("a", "b"))
    with pytest.raises(ArgumentError, match="^second: "):
        tc.compare(good, shorter)


def test_a_margin_in_percent_is_a_share_of_the_errors_of_the_baseline():
    first, second = torch.ones(2, 1000, dtype=torch.bool)
    second[:50] = False
    assert tc.compare(first, second).margin == pytest.approx(0.1 * 0.05)
    assert tc.compare(first, second, margin="50%").margin == pytest.approx(0.5 * 0.05)
    assert tc.compare(second, first).margin == pytest.approx(0.1 / 1000)  # of at least one error
    assert tc.compare(first, second, margin=0.02).margin == 0.02


@pytest.mark.parametrize("margin", ["10", "x%", "100%"])
def test_a_margin_that_is_no_share_is_refused(margin):
    right = answers([1, 0, 1])
    with pytest.raises(ArgumentError, match="^margin: "):
        tc.compare(right, right, margin=margin)


def test_groups_and_other_tests_of_a_family_decide_less():
    first = torch.arange(400) % 40 < 38
    second = torch.arange(400) % 40 < 36
    single = tc.compare(first, second)
    assert single.outcome == "first"
    toys = [f"toy {number % 4}" for number in range(400)]
    by_toy = tc.compare(first, second, groups=toys)
    assert by_toy.num_groups == 4
    assert by_toy.outcome == "undecided"
    assert "by 4 groups of images" in by_toy.verdict
    others = [1e-12, 0.4]
    adjusted = tc.compare(first, second, adjust=others)
    assert adjusted.p_value == tc.evaluation.holm([single.p_value, *others])[0]
    assert adjusted.unadjusted_p == single.p_value
    assert "adjusted for 3 tests" in adjusted.verdict


def test_an_evaluation_knows_the_groups_of_its_images(model, images):
    grouped = replace(images, groups=torch.arange(len(images)) // 2)
    evaluation = tc.evaluate(model, grouped)
    comparison = tc.compare(evaluation, evaluation)
    assert comparison.num_groups == len(grouped.groups.unique())
    assert tc.compare(evaluation, tc.evaluate(model, images)).num_groups is not None


def test_a_run_is_compared_with_itself(trained):
    comparison = tc.compare(trained, Run(trained), margin=0.5)
    assert comparison.only_first == comparison.only_second == 0
    with pytest.raises(RunError, match="another seed"):
        tc.compare([trained, trained], [trained, trained])


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
    sentence = (
        "^animals: there are images of owl, yak, which the model does not know; its 3 classes"
    )
    with pytest.raises(DataError, match=sentence):
        open_task(run, data=data)


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


def test_without_matplotlib_there_are_figures_and_no_plots(run, no_plots):
    evaluate(Run(run), output=run)
    assert (run / "evaluation.json").exists()
    assert not (run / "plots").exists()


@pytest.mark.slow
def test_a_model_without_decoder_has_every_plot_but_reconstructions(blind):
    evaluate(Run(blind), output=blind)
    assert names_of_plots(blind) == {*PLOTS} - {"reconstructions"}


@pytest.fixture
def photos(tmp_path):
    """Own pictures of another size, two of them with the same name."""
    folder = tmp_path / "photos"
    for seed, name in enumerate(("a/x.png", "b/x.png", "b/y.png")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        picture((40, 30), seed=seed).save(folder / name)
    return folder


@pytest.fixture
def drawing_calls(monkeypatch):
    """Arguments of the drawing functions, which draw nothing here."""
    calls = []
    figure = viz.canvas.new_figure(1, 1)
    for name in ("reconstructions", "perturbations"):
        monkeypatch.setattr(viz, name, lambda *args, **named: calls.append((args, named)) or figure)
    return calls


def paths_in(folder, *names):
    return list(map(folder.joinpath, names))


def test_the_same_seed_chooses_the_same_images_of_each_class(run, drawing_calls):
    for seed in (0, 0, 1):
        reconstruct_run(run, per_class=2, seed=seed)
    [((images, *_), _), ((repeated, *_), _), ((images_of_seed_1, *_), _)] = drawing_calls
    assert len(images) == 6
    assert torch.equal(images, repeated)
    assert not torch.equal(images, images_of_seed_1)


def test_a_limit_of_pairs_takes_images_of_all_classes(run, drawing_calls, monkeypatch):
    monkeypatch.setattr(pictures, "MAX_PAIRS", 4)
    reconstruct_run(run, per_class=2)
    [((_, _, labels), _)] = drawing_calls
    assert labels.tolist() == [0, 1, 1, 2]


def test_own_images_have_no_wrong_answers(run, photos, drawing_calls):
    reconstruct_run(run, [photos])
    [((images, rebuilt, labels), named)] = drawing_calls
    assert images.shape == rebuilt.shape == (3, 1, 18, 20)
    assert torch.equal(labels, named["predictions"])


def test_a_model_file_draws_own_images_into_its_folder(run, photos):
    path = reconstruct_run(run / "model.safetensors", [photos])
    assert path == run / "plots" / "reconstructions.png"


def test_a_grid_for_each_class_named_after_it(run, drawing_calls):
    paths = perturb_run(run, span=0.5, steps=3)
    assert paths == paths_in(run / "plots", "perturb_0.png", "perturb_1.png", "perturb_2.png")
    for index, ((grid, offsets), named) in enumerate(drawing_calls):
        assert grid.shape == (16, 3, 1, 18, 20)
        assert offsets.tolist() == [-0.5, 0.0, 0.5]
        assert f"'{index}'" in named["title"]


def test_a_grid_for_each_own_image_even_of_the_same_name(run, photos, drawing_calls, tmp_path):
    folder = tmp_path / "grids"
    paths = perturb_run(run, [photos], output=folder)
    assert paths == paths_in(folder, "perturb_x.png", "perturb_x-2.png", "perturb_y.png")
    assert sorted(paths) == sorted(folder.iterdir())


@pytest.mark.parametrize("draw", [reconstruct_run, perturb_run])
def test_a_model_without_decoder_is_refused_in_one_sentence(blind, draw):
    with pytest.raises(RunError, match="blind: this model has no decoder"):
        draw(blind)
    assert not (blind / "plots").exists()


@pytest.mark.parametrize("draw", [reconstruct_run, perturb_run])
def test_absent_and_damaged_images_are_named(run, draw, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no picture")
    for path in (tmp_path / "bad.png", tmp_path / "absent.png"):
        with pytest.raises(DataError, match=path.name):
            draw(run, [path])
    assert not (run / "plots").exists()


@pytest.mark.parametrize(
    ("named", "complaint"), [({"steps": 1}, "steps"), ({"span": -1.0}, "span")]
)
def test_a_grid_out_of_range_is_refused(run, named, complaint):
    with pytest.raises(ValueError, match=f"{complaint}: expected at least"):
        perturb_run(run, **named)

"""The task of label trees: weights of levels, figures, flat classifiers, and runs."""

import json
import os

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

import torchcaps as tc
from tasks.makers import SHORT_RUN, batch_of
from torchcaps.cli.main import main
from torchcaps.data import Dataset, label_tree
from torchcaps.errors import ArgumentError
from torchcaps.functional import margin_loss
from torchcaps.tasks import Classify, Tree, check_task, create_task, eval_outputs, evaluate_task
from torchcaps.tasks.tree import level_weights, path_figures
from torchcaps.testing import seeded
from torchcaps.training import TrainConfig, load_recipe, train
from training.makers import assert_resumes

PATHS = ("a/p/0", "a/p/1", "a/q/2", "b/r/3", "b/r/4")  # 2, 3 and 5 classes
SMALL = {"channels": (4, 8, 16)}
TREE = label_tree(PATHS)


def bars(count=60, classes=PATHS):
    """A bright bar in the k-th part of the width of class k."""
    random = np.random.default_rng(0)
    labels = np.arange(count) % 5
    images = random.integers(0, 40, (count, 1, 12, 10), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[..., 2 * label : 2 * label + 2] += 180
    return Dataset(torch.from_numpy(images), {"label": torch.from_numpy(labels)}, classes, "bars")


def network(**options):
    return tc.create_model(
        "tree_capsnet", num_classes=5, img_size=(12, 10), classes=PATHS, **SMALL | options
    )


def test_worked_values_of_the_weights():
    fixed = level_weights((2, 6, 10))
    np.testing.assert_allclose(fixed, [0.444, 0.333, 0.222], atol=5e-4)
    dynamic = level_weights((2, 6, 10), torch.tensor([0.9, 0.6, 0.3], dtype=torch.float64))
    # 1 - 0.4, 1 - 0.2 and 1 - 0.0667 over their sum.
    expected = np.array([0.6, 0.8, 1 - 0.2 / 3]) / (0.6 + 0.8 + 1 - 0.2 / 3)
    np.testing.assert_allclose(dynamic, expected)
    np.testing.assert_allclose(level_weights((2, 6, 10), torch.zeros(3)), [1 / 3] * 3)


PREDICTED = torch.tensor([[0, 0, 0], [0, 1, 1], [1, 2, 3], [0, 2, 4]])
TRUTH = torch.tensor([[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 4]])


def test_figures_whose_truth_is_known():
    figures = path_figures(PREDICTED, TRUTH, TREE)
    expected = {
        "level_1_accuracy": 0.5,
        "level_2_accuracy": 0.5,
        "level_3_accuracy": 0.75,
        "hierarchical_accuracy": 0.5625,
        "exact_match": 0.25,
        "consistency": 0.5,
        "hierarchical_precision": 0.625,
        "hierarchical_recall": 0.75,
        "hierarchical_f1": (1 + 6 / 7 + 6 / 7) / 4,
    }
    assert figures == pytest.approx(expected)
    assert path_figures(TRUTH, TRUTH, TREE) == pytest.approx(dict.fromkeys(expected, 1.0))
    wrong_at_every_level = path_figures(PREDICTED[2:3], TRUTH[2:3], TREE)
    assert wrong_at_every_level["hierarchical_accuracy"] == 0


@pytest.mark.parametrize("loss", ["margin", "dynamic_margin"])
def test_the_loss_is_that_of_each_level_weighted(loss):
    torch.manual_seed(0)
    task = create_task(network(), TrainConfig.of(loss=loss), bars())
    assert isinstance(task, Tree) and task.loss == loss
    batch = batch_of(task, bars(), torch.arange(7), seeded(0))
    outputs = task.training_step(batch, 0.0)
    levels = task.model.levels(batch.inputs)
    losses = []
    accuracies = []
    for capsules, labels in zip(
        levels, torch.tensor(TREE.ancestors)[batch.targets["label"]].T, strict=True
    ):
        losses.append(margin_loss(capsules.activation, labels))
        is_right = capsules.activation.argmax(dim=1) == labels
        accuracies.append(is_right.double().mean().item())
    accuracy = torch.tensor(accuracies) if loss == "dynamic_margin" else None
    total = torch.stack(losses) @ level_weights(TREE.sizes, accuracy).float()
    assert_close(outputs["loss"], total)
    assert_close(outputs[loss], losses[-1])
    assert_close(outputs[f"{loss}_1"], losses[0])
    assert outputs["accuracy"].item() == accuracies[-1]


def test_metrics_of_an_epoch_are_those_of_the_tree():
    task = create_task(network(), TrainConfig(), bars())
    metrics = task.compute_metrics(eval_outputs(task, bars()))
    tree_metrics = {"exact_match", "hierarchical_accuracy", "consistency"}
    assert metrics.keys() == {"loss", "accuracy"} | tree_metrics


def test_a_flat_classifier_gets_its_coarse_classes_derived():
    torch.manual_seed(0)
    images = bars()
    plain = tc.create_model("resnet20", num_classes=5, in_chans=1, img_size=(12, 10), width=4)
    for model in (network(tree="flat"), plain):
        task = create_task(model, TrainConfig(), images)
        assert type(task) is Tree and not task.knows_levels
        assert task.loss == model.spec.loss
        evaluation = evaluate_task(task, images)
        figures = evaluation.to_dict()
        assert figures["consistency"] == 1
        assert figures["exact_match"] == figures["accuracy"] == figures["level_3_accuracy"]
        assert evaluation.paths.equal(torch.tensor(TREE.ancestors)[evaluation.predictions])
        batch = batch_of(task, images, torch.arange(5), seeded(0))
        task.training_step(batch, 0.0)["loss"].backward()
        [row] = task.eval().predict(images.float_images()[:1])
        assert row["consistent"] and row["levels"][-1] == row["label"]


def test_classes_that_are_paths_select_the_task():
    without_paths = bars(classes=tuple("vwxyz"))
    assert type(create_task(network(tree="flat"), TrainConfig(), without_paths)) is Classify
    assert type(create_task(network(), TrainConfig(), bars())) is Tree
    config = TrainConfig.of(task="classify")
    assert type(create_task(network(), config, bars())) is Classify  # of its finest classes


@pytest.mark.parametrize(
    ("model", "settings", "classes", "message"),
    [
        (
            {},
            {},
            tuple("vwxyz"),
            "task: tree takes classes that are paths of one depth, such as .*, got .* v, w, x, y, z",
        ),
        (
            {"tree": "flat"},
            {"task": "tree"},
            ("a/v", "w", "x", "y", "z"),
            "task: tree takes classes that are paths of one depth",
        ),
        (
            {},
            {},
            ("a/p/0", "a/p/1", "a/q/2", "b/r/3", "b/s/4"),
            "model: expected one built for a tree with levels of .2, 4, 5. classes",
        ),
        (
            {"tree": "flat"},
            {"loss": "dynamic_margin"},
            PATHS,
            "loss: dynamic_margin weighs levels of a label tree",
        ),
        ({}, {"loss": "margn"}, PATHS, "unknown loss 'margn'; did you mean 'margin'"),
    ],
)
def test_classes_models_and_losses_that_do_not_fit_are_refused(model, settings, classes, message):
    with pytest.raises(ArgumentError, match=message):
        create_task(network(**model), TrainConfig.of(**settings), bars(classes=classes))


@pytest.fixture
def settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = bars(40)
    np.savez(
        "bars.npz",
        images=images.images.numpy()[:, 0],
        labels=images.labels.numpy(),
        classes=np.array(PATHS),
    )
    Image.fromarray(images.images[7, 0].numpy()).save("one.png")
    options = {"channels": [4, 8, 16]}
    return SHORT_RUN | {"model": "tree_capsnet", "model_options": options, "data": "bars.npz"}


def test_a_stopped_run_ends_in_the_same_bytes(settings, tmp_path):
    options = settings["model_options"] | {"tree": "shuffled"}
    changes = {"model_options": options, "loss": "dynamic_margin", "seed": 4}
    assert_resumes(TrainConfig.of(**settings | changes), tmp_path, step=5)


def test_a_run_goes_through_the_commands(settings, tmp_path, capsys):
    run = train(TrainConfig.of(**settings | {"epochs": 1}), "run")
    assert main(["evaluate", "run"]) == 0
    assert "level 1: 2 classes" in capsys.readouterr().out
    plots = os.listdir(run.path / "plots")
    assert {"level-1.png", "level-2.png", "confusion_matrix.png"} <= set(plots)
    assert main(["predict", "run", "one.png", "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)
    coarse, middle, fine = row["levels"]
    assert row["label"] == fine
    assert coarse in ("a", "b") and middle in ("a/p", "a/q", "b/r")
    assert row["consistent"] == (fine.startswith(middle) and middle.startswith(coarse))
    assert main(["report", "run", "--output", "report.html"]) == 0
    assert "Groups of level 2" in (tmp_path / "report.html").read_text()


def test_the_recipe_shows_figures_that_the_evaluation_has():
    recipe = load_recipe("tree-fashion")
    *capsule_rows, last_row = recipe.rows
    assert last_row.name == "ResNet-20"
    for row in capsule_rows:
        options = recipe.resolve(row, "small").model.options
        task = create_task(network(**options), TrainConfig(), bars())
        assert set(recipe.figures) <= evaluate_task(task, bars()).to_dict().keys()


def test_a_model_of_more_outputs_than_classes_is_refused():
    plain = tc.create_model("resnet20", num_classes=9, in_chans=1, img_size=(12, 10), width=4)
    with pytest.raises(
        ArgumentError,
        match=r"activation: expected \[batch, classes=5\], got \[batch=1, classes=9\]",
    ):
        check_task(create_task(plain, TrainConfig(), bars()), bars())

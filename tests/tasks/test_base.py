"""What every task has by itself."""

import pytest
import torch
from PIL import Image
from torch import nn

import torchcaps as tc
from torchcaps.data import Dataset, Preprocess
from torchcaps.errors import ArgumentError, UnknownNameError
from torchcaps.settings import TrainConfig
from torchcaps.tasks import (
    Classify,
    Task,
    list_metrics,
    register_loss,
    register_metric,
    register_task,
    task_class,
)
from torchcaps.tasks._base import TASKS
from torchcaps.tasks.metrics import METRICS, extra_metrics
from torchcaps.types import model_metadata


class Bare(Task):
    """A task that says no more than it must."""

    name = "bare"

    def training_step(self, batch, fraction_trained):
        return {"loss": self.model(batch.inputs).square().mean()}

    def eval_step(self, batch):
        error = self.model(batch.inputs).square().flatten(1).mean(dim=1)
        return {"loss": error, "accuracy": -error}


def test_a_task_of_one_loss_needs_no_name_for_it():
    assert Bare(nn.Linear(2, 2), TrainConfig()).loss == "loss"
    with pytest.raises(UnknownNameError, match="unknown loss 'margin'; known: loss"):
        Bare(nn.Linear(2, 2), TrainConfig.of(loss="margin"))


def test_a_task_that_says_nothing_of_single_pictures_says_so():
    with pytest.raises(
        ArgumentError, match="predict: the task bare says nothing of single pictures"
    ):
        Bare(nn.Linear(2, 2), TrainConfig()).predict(torch.zeros(1, 1, 2, 2))


class Named(nn.Module):
    """A network with attributes of the names that the library uses."""

    spec = "a sheet of paper"

    def __init__(self):
        super().__init__()
        self.task = nn.Linear(64, 2)
        self.classes = nn.Parameter(torch.zeros(2))
        self.preprocess = nn.Flatten()

    def forward(self, images):
        return self.task(self.preprocess(images)) + self.classes


def test_a_training_changes_no_attribute_of_a_module(tmp_path):
    model = Named()
    images = Dataset(
        torch.rand(12, 1, 8, 8), {"label": torch.arange(12) % 2}, ("cat", "dog"), "pets"
    )
    before = dict(vars(model))
    del before["training"]
    fitted, history = tc.fit(model, images, task="classify", epochs=1, device="cpu")
    assert fitted is model and len(history) == 1
    for name, attribute in before.items():
        assert vars(model)[name] is attribute, name
    assert model.spec == "a sheet of paper"
    assert (type(model.task), type(model.preprocess)) == (nn.Linear, nn.Flatten)
    metadata = model_metadata(model)
    assert (metadata.classes, metadata.task) == (("cat", "dog"), "classify")
    assert metadata.preprocess == Preprocess((8, 8), 1)
    file = tmp_path / "one.png"
    Image.new("L", (8, 8)).save(file)
    (row,) = tc.predict(model, [file])
    assert set(row["activations"]) == {"cat", "dog"}
    assert sum(row["activations"].values()) == pytest.approx(1)  # its outputs are logits


def test_auto_never_takes_a_subclass_that_does_not_ask_for_it():
    images = Dataset(torch.rand(4, 1, 8, 8), {"label": torch.arange(4) % 2}, ("cat", "dog"), "pets")
    with TASKS.restored():
        register_task("variant")(type("Variant", (Classify,), {}))
        assert task_class("auto", nn.Identity(), images) is Classify
        asking = type("Asking", (Classify,), {"model_tasks": ("classify",)})
        register_task("asking")(asking)
        assert task_class("auto", nn.Identity(), images) is asking


def test_every_task_with_a_registry_takes_further_losses():
    for task in ("classify", "segment", "align"):
        losses = tc.tasks.task_class(task, nn.Identity()).losses
        with losses.restored():
            register_loss("another", task=task)(lambda *_: 0.0)
            assert "another" in losses
            with pytest.raises(ArgumentError, match="loss: 'another' is registered already"):
                register_loss("another", task=task)(lambda *_: 0.0)
    with pytest.raises(ArgumentError, match="^task: "):
        register_loss("another", task="transform")


def test_metrics_of_the_settings_are_reported_if_the_task_has_the_outputs_they_need(capsys):
    images = Dataset(
        torch.rand(12, 1, 8, 8), {"label": torch.arange(12) % 3}, ("a", "b", "c"), "noise"
    )
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    names = ("brier_score", "largest_logit", "paths_of_trees")
    with METRICS.restored():
        register_metric("largest_logit", needs=["logits"])(lambda logits: logits.max())
        register_metric("paths_of_trees", needs=["paths"])(len)
        assert {*names, "top5_accuracy"} <= set(list_metrics())
        config = TrainConfig.of(metrics=names, epochs=1, device="cpu", precision="fp32")
        assert TrainConfig.from_dict(config.to_dict()) == config
        model, history = tc.fit(plain, images, validation=images, config=config)
        evaluation = tc.tasks.evaluate_task(tc.tasks.create_task(model, config, images), images)
        figures = evaluation.to_dict()
    sentence = (
        "paths_of_trees is left out: it needs paths, and there are activation, labels, logits"
    )
    before, _, _ = capsys.readouterr().err.partition("epoch 1/1")
    assert before.count("is left out") == before.count(sentence) == 1
    probabilities = model(images.images).softmax(dim=1)
    target = nn.functional.one_hot(images.labels, 3)
    brier = (probabilities - target).square().sum(dim=1).mean().item()
    assert figures["brier_score"] == history[0]["val_brier_score"] == pytest.approx(brier)
    assert figures["largest_logit"] == pytest.approx(model(images.images).max().item())
    assert "paths_of_trees" not in figures and "val_paths_of_trees" not in history[0]
    assert f"brier score {brier:.4f}" in evaluation.summary
    with pytest.raises(
        UnknownNameError, match="unknown metric 'brier'; did you mean 'brier_score'"
    ):
        Bare(plain, TrainConfig.of(metrics=["brier"]))


def test_metrics_by_hand():
    activation = torch.eye(6)[[0, 1, 5]] * 0.5 - torch.arange(6) * 0.01
    outputs = {"activation": activation, "labels": torch.tensor([0, 5, 5])}
    figures = extra_metrics(("top5_accuracy", "brier_score"), outputs)
    assert figures["top5_accuracy"] == pytest.approx(2 / 3)
    assert figures["brier_score"] == pytest.approx((0.2555 + 1.3455 + 0.3055) / 3)

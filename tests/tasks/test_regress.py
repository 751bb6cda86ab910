"""Real numbers from poses: reading, losses, statistics of the training images, files."""

import csv

import pytest
import torch
from PIL import Image
from torch import nn

import torchcaps as tc
from torchcaps.data import Dataset
from torchcaps.errors import ArgumentError
from torchcaps.tasks import Regress
from torchcaps.testing import seeded
from torchcaps.types import model_metadata

MEAN = torch.tensor([100.0, -3.0])
STD = torch.tensor([20.0, 0.5])


class Told(nn.Module):
    """A model whose pose is the first pixels of an image; its one weight is a factor."""

    in_chans = 1
    img_size = (2, 2)

    def __init__(self, capsules=1, activation="none"):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))
        self.num_capsules = capsules
        self.spec = tc.ModelSpec(pose=True, activation=activation, task="regress")

    def capsules(self, images):
        pose = self.factor * images.flatten(1).unflatten(1, (self.num_capsules, -1))
        return tc.Capsules(pose, pose.norm(dim=2))

    def forward(self, images):
        return self.capsules(images).activation


def told_images(count=40, seed=0):
    """Images whose first two pixels are the values, standardized."""
    values = torch.randn(count, 2, generator=seeded(seed))
    pixels = torch.cat([values, torch.zeros(count, 2)], dim=1).view(-1, 1, 2, 2)
    targets = {"value": MEAN + STD * values}
    return Dataset(
        pixels, targets, ("x", "y"), "told", preprocess=tc.data.preprocess.ArrayPreprocess
    )


def squares(count=100, seed=0):
    """Bright squares, and where they are: bytes, and places in units far from 1."""
    places = torch.randint(0, 22, (count, 2), generator=seeded(seed))
    images = torch.zeros(count, 1, 28, 28, dtype=torch.uint8)
    for image, (row, column) in zip(images, places.tolist(), strict=True):
        image[0, row : row + 6, column : column + 6] = 255
    values = torch.stack([1000 + 50.0 * places[:, 0], 0.01 * places[:, 1]], dim=1)
    return Dataset(images, {"value": values}, ("row", "column"), "squares")


def small(num_classes, **options):
    torch.manual_seed(0)
    sizes = {"channels": 16, "primary_types": 2, "decoder": False}
    return tc.create_model("capsnet_small", num_classes=num_classes, **sizes, **options)


def fitted(model, images, **settings):
    return tc.fit(model, images, verbose=False, **{"epochs": 1, **settings}).model


def facts_of(model):
    return model_metadata(model).targets


def test_statistics_are_those_of_the_training_images_alone():
    """Values of held-out and of test images have no part in the mean and the deviation."""
    train, val = told_images(30), told_images(10, seed=1)
    val.targets["value"].add_(1e6)
    facts = facts_of(fitted(Told(), train, validation=val))
    values = train.targets["value"].double()
    assert facts["names"] == ["x", "y"]
    assert facts["mean"] == pytest.approx(values.mean(dim=0).tolist())
    assert facts["std"] == pytest.approx(values.std(dim=0, correction=0).tolist())

    # The part that is held out by the training itself.
    images = told_images(40)
    parts = tc.training.sampling.split(images, tc.training.TrainConfig())
    assert facts_of(fitted(Told(), images))["mean"] == pytest.approx(
        parts[0].targets["value"].double().mean(dim=0).tolist()
    )


def test_evaluation_of_a_model_that_is_right():
    """The pose is the standardized value: errors are those of its mean and deviation alone."""
    train = told_images(30)
    model = fitted(Told(), train, lr=1e-12)
    facts = {name: torch.tensor(facts_of(model)[name]) for name in ("mean", "std")}
    test = told_images(20, seed=5)
    predicted = facts["mean"] + facts["std"] * test.images.flatten(1)[:, :2]
    evaluation = tc.evaluate(model, test)
    errors = (predicted - test.targets["value"]).abs().mean(dim=0)
    assert evaluation.predicted == pytest.approx(predicted.double(), rel=1e-5)
    assert evaluation.per_value["x"]["mae"] == pytest.approx(errors[0].item(), rel=1e-3)
    [row] = tc.tasks.create_task(model, tc.training.TrainConfig(), test).predict(test.images[:1])
    assert row == pytest.approx(dict(zip("xy", predicted[0].tolist(), strict=True)), rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "expected"), [("mse", (4 + 0.25) / 2), ("huber", (1.5 + 0.125) / 2)]
)
def test_losses(loss, expected):
    """Of one image, whose poses are 2 and 1/2 deviations from the truth."""
    model = fitted(Told(), told_images(30), lr=1e-12)
    images = told_images(1)
    images.targets["value"].copy_(torch.tensor(facts_of(model)["mean"]))
    images.inputs.copy_(torch.tensor([2.0, 0.5, 0, 0]).view(1, 1, 2, 2))
    config = tc.training.TrainConfig().updated(loss=loss)
    task = tc.tasks.create_task(model, config, images)
    batch = tc.data.Batch(images.inputs, dict(images.targets), torch.arange(1))
    loss = task.training_step(batch, 0.5)["loss"]
    assert loss.item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("capsules", [1, 2])
def test_which_numbers_of_which_capsules(capsules):
    """One capsule has all values; of a capsule for each it is the first number of its pose."""
    model = fitted(Told(capsules), told_images(30), lr=1e-12)
    pixels = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).view(1, 1, 2, 2)
    task = Regress(model)
    expected = {1: [[1.0, 2.0]], 2: [[1.0, 3.0]]}[capsules]
    assert task.read_values(pixels).tolist() == expected


def test_lengths_are_stretched():
    """Poses of lengths below one say any number: v / (1 - |v|)."""
    model = fitted(Told(activation="length"), told_images(30), lr=1e-12)
    pixels = torch.tensor([[0.3, 0.4, 0.0, 0.0]]).view(1, 1, 2, 2)
    assert Regress(model).read_values(pixels)[0].tolist() == pytest.approx([0.6, 0.8], rel=1e-5)


@pytest.mark.parametrize(("num_classes", "loss"), [(1, "huber"), (2, "mse")])
def test_places_are_learned(num_classes, loss):
    """Places of squares in any unit, from data to files and back."""
    settings = {"epochs": 8, "lr": 5e-3, "loss": loss, "batch_size": 16}
    model = fitted(small(num_classes), squares(300), **settings)
    evaluation = tc.evaluate(model, squares(100, seed=1))
    assert evaluation.r2 > 0.6
    assert evaluation.per_value["row"]["mae"] > 100 * evaluation.per_value["column"]["mae"]


def test_files(tmp_path):
    """A table of numbers, a run by the name of a model, and all that reads the run."""
    images = squares(60)
    with open(tmp_path / "set.csv", "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("file", "row", "column"))
        for index, values in enumerate(images.targets["value"].tolist()):
            Image.fromarray(images.images[index, 0].numpy()).save(tmp_path / f"{index}.png")
            writer.writerow((f"{index}.png", *values))
    run = tc.train(
        "capsnet_small",
        tmp_path / "run",
        data=str(tmp_path / "set.csv"),
        value_column="row,column",
        model_options={"channels": 8, "primary_types": 2, "decoder": False},
        epochs=1,
    )
    assert run.config.task.name == "regress"
    assert run.config.augmentation.shift == 0  # it would change what the values say
    evaluation = tc.evaluate(run, output=run.path)
    assert evaluation.num_samples == 12
    (tmp_path / "other.csv").write_text((tmp_path / "set.csv").read_text())
    assert tc.evaluate(run, str(tmp_path / "other.csv")).num_samples == 60
    model = tc.load(run.path)
    pictures = [str(tmp_path / "0.png"), str(tmp_path / "1.png")]
    rows = tc.Predictor(run.path)(pictures)
    assert [*rows[0]] == ["path", "row", "column"]
    assert tc.predict(tc.load(tc.save(model, tmp_path / "copy")), pictures) == rows
    text = tc.report(run.path).read_text()
    assert "Predicted against true values" in text
    assert "Largest errors" in text


@pytest.mark.parametrize(
    ("columns", "lines", "message"),
    [
        ("row", ["0.png,x"], "line 2: expected a number, got 'x'"),
        ("row", ["0.png,nan"], "line 2: expected a number, got 'nan'"),
        ("row", ["0.png,"], "line 2: expected a number, got ''"),
        ("angle", ["0.png,1"], "no column 'angle'"),
    ],
)
def test_tables_that_are_refused(columns, lines, message, tmp_path):
    (tmp_path / "set.csv").write_text("\n".join(["file,row", *lines]))
    with pytest.raises(tc.errors.DataError, match=message):
        tc.data.load_dataset(tmp_path / "set.csv", value_column=columns)


def test_refused():
    """One sentence each: no poses, sizes that do not fit, a model without statistics."""
    images = squares(20)
    with pytest.raises(ArgumentError, match="regress reads values from poses, .* got CNN"):
        fitted(tc.create_model("cnn_baseline", num_classes=2), images)
    with pytest.raises(
        ArgumentError, match=r"num_classes=1\), or a capsule for each \(num_classes=2"
    ):
        fitted(small(3), images)
    with pytest.raises(ArgumentError, match="trained by the task regress"):
        tc.evaluate(small(2), images)
    with pytest.raises(
        ArgumentError, match="unknown loss 'margin'; known: huber, mse .*register_loss"
    ):
        fitted(small(2), images, loss="margin")
    images.targets["value"][0] = torch.nan
    with pytest.raises(ArgumentError, match="finite"):
        fitted(small(2), images)


def test_labels_come_before_values():
    """Of a set with both, a classifier takes its labels unless the task is named."""
    images = squares(20)
    images.targets["label"] = torch.arange(20) % 2
    model = small(2)
    assert tc.tasks.task_class("auto", model, images).name == "classify"
    assert tc.tasks.task_class("auto", model, squares(20)).name == "regress"

"""Training what is in memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import torchcaps as tc
from torchcaps.data import load_dataset
from torchcaps.errors import DataError, TrainingError, UnknownNameError
from torchcaps.reporting import evaluate, predict
from torchcaps.training import Interrupted, Run, TrainConfig, fit, load, train

from .makers import TINY, tiny


def small(seed=0):
    sizes = {"num_classes": 3, "img_size": (18, 20)}
    return tc.create_model(
        "capsnet", generator=torch.Generator().manual_seed(seed), **sizes, **TINY
    )


class Plain(nn.Module):
    """Logits, with a batch norm and dropout; nothing declared."""

    def __init__(self, classes=3):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(360, 16),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(16, classes),
        )

    def forward(self, images):
        return self.layers(images)


@pytest.fixture(scope="module")
def images(bars):
    return load_dataset(bars, "train")


SETTINGS = {"epochs": 2, "batch_size": 16, "holdout": 6, "shift": 1}


def test_it_is_the_training_that_a_run_folder_has(bars, images, tmp_path):
    train(tiny(bars), tmp_path / "run")
    model, history = fit(small(), images, **SETTINGS)
    expected = load(tmp_path / "run")
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, expected.state_dict()[name]), name
    rows = [row for row in Run.open(tmp_path / "run").rows if row["kind"] == "epoch"]
    speed = "images_per_second"
    assert [{**row, speed: 0} for row in history] == [{**row, speed: 0} for row in rows]
    assert not model.training and list(tmp_path.iterdir()) == [tmp_path / "run"]


@pytest.mark.parametrize("kind", ["bytes", "floats", "arrays"])
def test_images_are_a_set_tensors_or_arrays(images, kind):
    pixels, labels = images.images, images.labels
    given = {
        "bytes": (pixels, labels),
        "floats": (pixels.double() / 255, labels.int()),
        "arrays": (pixels.numpy(), labels.numpy().astype(np.uint8)),
    }[kind]
    model, history = fit(small(), given, **SETTINGS)
    whole, _ = fit(small(), images, **SETTINGS)
    torch.testing.assert_close(
        model(images.float_images()), whole(images.float_images()), atol=1e-5, rtol=1e-4
    )
    assert len(history) == 2


@pytest.mark.parametrize(("optimizer", "lr"), [("adam", 0.01), ("adamw", 0.01), ("sgd", 0.1)])
def test_any_module_that_returns_logits_learns(images, optimizer, lr):
    torch.manual_seed(0)
    model, history = fit(
        Plain(), images, optimizer=optimizer, lr=lr, epochs=20, batch_size=8, weight_decay=1e-4
    )
    assert history[-1]["train_cross_entropy"] < 0.5
    assert evaluate(model, images).accuracy > 0.9
    assert model.classes == images.classes


def test_the_trained_model_predicts_files(images, tmp_path):
    from PIL import Image

    model, _ = fit(small(), images, **SETTINGS)
    Image.fromarray(images.images[0, 0].numpy()).save(tmp_path / "one.png")
    [row] = predict(model, [tmp_path / "one.png"])
    assert row["label"] in images.classes and row["path"].endswith("one.png")


def test_callbacks_see_the_model_its_gradients_and_losses(images):
    steps, epochs = [], []

    def on_step(model, losses):
        norm = sum(
            weight.grad.square().sum() for weight in model.parameters() if weight.grad is not None
        )
        steps.append((losses["step"], losses["loss"], float(norm)))

    model = small()
    fit(
        model,
        images,
        on_step=on_step,
        on_epoch=lambda seen, row: epochs.append((seen is model, row)),
        **SETTINGS,
    )
    assert [step for step, _, _ in steps] == [1, 2, 3, 4, 5, 6]
    assert all(math.isfinite(loss) and norm > 0 for _, loss, norm in steps)
    assert [(same, row["epoch"]) for same, row in epochs] == [(True, 1), (True, 2)]


def test_the_best_epoch_is_kept(images):
    weights = []
    model, history = fit(
        small(),
        images,
        lr=0.3,
        clip=0.0,
        epochs=6,
        batch_size=16,
        schedule="constant",
        on_epoch=lambda seen, row: weights.append(seen.class_capsules.weight.detach().clone()),
    )
    best = [row["epoch"] for row in history if row["best"]][-1]
    assert torch.equal(model.class_capsules.weight, weights[len(weights) - len(history) + best - 1])


def test_held_out_images_may_be_given(images):
    some, rest = images.subset(range(12)), images.subset(range(12, len(images)))
    _, history = fit(small(), rest, validation=some, epochs=1, batch_size=16)
    assert history[0]["images"] == len(rest)


def test_a_configuration_and_settings_go_together(images):
    config = TrainConfig.of(epochs=1, batch_size=16, loss="spread")
    _, history = fit(small(), images, config=config, epochs=2)
    assert len(history) == 2 and "train_spread" in history[0]


def test_it_can_be_stopped(images):
    count = iter(range(1, 100))
    with pytest.raises(Interrupted):
        fit(small(), images, should_stop=lambda: next(count) == 3, **SETTINGS)


@pytest.mark.parametrize(
    ("model", "given", "settings", "error", "sentence"),
    [
        (
            small,
            None,
            {"epoch": 2},
            UnknownNameError,
            "unknown setting 'epoch'; did you mean 'epochs'",
        ),
        (small, None, {"epochs": 0}, ValueError, "epochs: expected at least 1, got 0"),
        (
            small,
            None,
            {"loss": "marign"},
            UnknownNameError,
            "unknown loss 'marign'; did you mean 'margin'",
        ),
        (
            small,
            None,
            {"task": "clasify"},
            UnknownNameError,
            "unknown task 'clasify'; did you mean 'classify'",
        ),
        (
            small,
            None,
            {"optimizer": "adma"},
            UnknownNameError,
            "unknown optimizer 'adma'; did you mean 'adam'",
        ),
        (
            lambda: Plain(2),
            None,
            {},
            ValueError,
            "model: expected an output for each of 3 classes, got 2",
        ),
        (
            small,
            "folder",
            {},
            ValueError,
            r"images: expected an ImageSet or \(images, labels\), got str",
        ),
        (small, (torch.zeros(4, 18, 20), torch.zeros(4)), {}, DataError, "images"),
        (small, (torch.zeros(4, 1, 18, 20), torch.zeros(3)), {}, DataError, "label"),
        (
            small,
            (torch.zeros(8, 1, 9, 9).byte(), torch.arange(8) % 3),
            {},
            ValueError,
            "images: expected",
        ),
        (
            small,
            None,
            {"lr": 1e30, "clip": 0.0, "schedule": "constant"},
            TrainingError,
            "start again with a lower lr",
        ),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(images, model, given, settings, error, sentence):
    with pytest.raises(error, match=sentence) as raised:
        fit(
            model(),
            images if given is None else given,
            **{"batch_size": 4, "epochs": 1, "holdout": 0.4} | settings,
        )
    assert "\n" not in str(raised.value)

"""Training on images in memory."""

from __future__ import annotations

import math
import os
from operator import itemgetter

import pytest
import torch
from torch import nn

import torchcaps as tc
from checks import assert_equal
from torchcaps.errors import ArgumentError, DataError, TrainingError, UnknownNameError
from torchcaps.reporting import evaluate
from torchcaps.training import (
    Callback,
    Run,
    TrainConfig,
    fit,
    load,
    register_callback,
)
from torchcaps.training.callbacks import CALLBACKS, copy_state
from torchcaps.types import ModelSpec

from .makers import Watch, stop_after, tiny_capsnet


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


SETTINGS = {"epochs": 2, "batch_size": 16, "holdout": 6, "shift": 1}


def test_fit_trains_as_a_run_folder_does(finished, images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, history = fit(tiny_capsnet(), images, **SETTINGS)
    assert_equal(model.state_dict(), load(finished).state_dict())
    assert not model.training
    assert os.listdir() == []
    rows = Run.open(finished).epochs
    for row in (*history, *rows):
        del row["images_per_second"]
    assert history == rows


def test_any_module_that_returns_logits_learns(images):
    torch.manual_seed(0)
    model, history = fit(
        Plain(), images, optimizer="adamw", lr=0.01, epochs=20, batch_size=8, weight_decay=1e-4
    )
    assert history[-1]["train_cross_entropy"] < 0.5
    assert evaluate(model, images).accuracy > 0.9
    assert model.classes == images.classes


def test_the_weights_are_those_of_the_best_epoch(images):
    weights = {}

    def on_epoch(trainer, row):
        weights[row["epoch"]] = trainer.model.class_capsules.weight.detach().clone()

    model, history = fit(
        tiny_capsnet(),
        images,
        lr=0.3,
        clip=0.0,
        epochs=6,
        batch_size=16,
        schedule="constant",
        callbacks=[Watch(on_epoch=on_epoch)],
    )
    [*_, best_row] = filter(itemgetter("best"), history)
    assert best_row["epoch"] < len(history), "the case is one whose last epoch is not its best"
    assert torch.equal(model.class_capsules.weight, weights[best_row["epoch"]])


def test_a_configuration_and_settings_go_together(images):
    config = TrainConfig.of(epochs=1, batch_size=16, loss="spread")
    _, history = fit(tiny_capsnet(), images, config=config, epochs=2)
    assert len(history) == 2 and "train_spread" in history[0]


def interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(("count", "by_keyboard"), [(2, True), (4, False)])
def test_a_training_that_is_stopped_returns_what_it_has(images, capsys, count, by_keyboard):
    """An epoch has 3 steps."""
    steps = iter(range(1, 10))
    stop = Watch(lambda *_: interrupt() if next(steps) == count else None)
    best = []
    watch = Watch(on_epoch=lambda trainer, _: best.append(copy_state(trainer.model)))
    stop = stop if by_keyboard else stop_after(count)
    model, history = fit(tiny_capsnet(), images, callbacks=[watch, stop], **SETTINGS)
    weights = "those of epoch 1" if count == 4 else "those of this step"
    assert (
        f"stopped after step {count} of 6; the weights are {weights}\n" in capsys.readouterr().err
    )
    assert len(history) == len(best) == count // 3
    assert not model.training
    if best:
        assert_equal(dict(model.state_dict()), best[0])


def test_weights_from_before_a_second_start_are_not_returned(images, monkeypatch, capsys):
    """Six epochs of 3 steps; the training starts again after step 9 and is stopped 2 steps later."""
    verdicts = iter([None, "every class capsule was dead", None])
    monkeypatch.setattr(tc.tasks.Classify, "detect_collapse", lambda *_: next(verdicts))
    steps = iter(range(1, 20))
    last = []

    def watch_step(trainer, _):
        if next(steps) == 11:
            last.append(copy_state(trainer.model))
            trainer.stop()

    settings = SETTINGS | {"epochs": 6}
    model, history = fit(tiny_capsnet(), images, callbacks=[Watch(watch_step)], **settings)
    assert "stopped after step 2 of 18; the weights are those of this step" in (
        capsys.readouterr().err
    )
    assert history == []
    assert_equal(dict(model.state_dict()), last[0])


def test_settings_of_the_data_hold_for_arrays_and_beside_images_to_validate_with(images):
    arrays = (images.inputs, images.labels)
    watch = Watch()
    fit(
        tiny_capsnet(),
        *arrays,
        validation=images,
        per_class=4,
        epochs=1,
        batch_size=4,
        callbacks=[watch],
    )
    assert len(watch.steps) == 3  # of 3 classes
    with pytest.raises(ArgumentError, match="per_class: expected at most"):  # of no class fewer
        fit(tiny_capsnet(), *arrays, validation=images, per_class=len(images))
    for name, amount in {"holdout": 0.2, "folds": 3, "fold": 1}.items():
        with pytest.raises(ArgumentError, match=f"{name}: expected none beside images to validate"):
            fit(tiny_capsnet(), *arrays, validation=images, **{name: amount})
    with pytest.raises(ValueError, match=r"images: expected .*18.*20"):
        fit(tiny_capsnet(), *arrays, img_size=12, epochs=1)


@pytest.mark.parametrize(
    ("model", "data", "settings", "error", "sentence"),
    [
        (
            tiny_capsnet,
            None,
            {"epoch": 2},
            UnknownNameError,
            "unknown setting 'epoch'; did you mean 'epochs'",
        ),
        (
            lambda: Plain(2),
            None,
            {},
            ValueError,
            "outputs of the model: expected at least 3, got 2",
        ),
        (tiny_capsnet, (torch.zeros(4, 1, 18, 20), torch.zeros(3)), {}, DataError, "label"),
        (
            tiny_capsnet,
            (torch.zeros(8, 1, 9, 9).byte(), torch.arange(8) % 3),
            {},
            ValueError,
            "images: expected",
        ),
        (
            tiny_capsnet,
            None,
            {"lr": 1e30, "clip": 0.0, "schedule": "constant"},
            TrainingError,
            "start again with a lower lr",
        ),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(images, model, data, settings, error, sentence):
    settings = {"batch_size": 4, "epochs": 1, "holdout": 0.4} | settings
    with pytest.raises(error, match=sentence):
        fit(model(), images if data is None else data, **settings)


def test_a_first_loss_of_nan_blames_no_learning_rate(images):
    model = Plain()
    model.register_forward_hook(lambda *call: call[2] * math.nan if model.training else None)
    with pytest.raises(TrainingError, match="before any update") as raised:
        fit(model, images, **SETTINGS)
    assert "lower lr" not in str(raised.value)


def noisy(images):
    """As a transform of another library: it draws from the global generator."""
    return (images + 0.1 * torch.randn(images.shape)).clamp(0, 1)


def test_a_transform_changes_the_batches_of_steps_alone(images):
    batches = []

    def transform(batch):
        batches.append(batch)
        return noisy(batch)

    model, _ = fit(tiny_capsnet(), images, transform=transform, **SETTINGS)
    plain, _ = fit(tiny_capsnet(), images, **SETTINGS)
    assert not torch.equal(model.conv.weight, plain.conv.weight)
    assert len(batches) == 6  # validation has no transform
    assert batches[0].shape == (16, 1, 18, 20) and batches[0].is_floating_point()
    assert not torch.equal(batches[0], batches[1])


def test_random_numbers_of_a_transform_come_from_the_seed_of_the_training(images):
    models = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        model, _ = fit(tiny_capsnet(), images, transform=noisy, **SETTINGS)
        assert torch.equal(torch.get_rng_state(), before)
        models.append(model.state_dict())
    assert_equal(*models)


@pytest.mark.parametrize("change", [lambda x: x[:, :, 1:], lambda x: None])
def test_a_transform_that_changes_the_shape_is_refused(images, change):
    with pytest.raises(ArgumentError, match="^transform: "):
        fit(tiny_capsnet(), images, transform=change, **SETTINGS)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 1 GB")]
)
def test_memory_that_is_exhausted_is_one_sentence(images, error):
    class Greedy(Plain):
        def forward(self, images):
            if torch.is_grad_enabled():
                raise error
            return super().forward(images)

    sentence = "the memory is exhausted; use a smaller batch_size than 12, such as 6, or "
    with pytest.raises(TrainingError, match=sentence):
        fit(Greedy(), images, **SETTINGS | {"batch_size": 12})
    sentence = "the memory is exhausted; use a smaller img_size or model"
    with pytest.raises(TrainingError, match=sentence):
        fit(Greedy(), images, **SETTINGS | {"batch_size": 1})


def test_callbacks_of_the_settings_see_a_training_and_may_stop_it(images):
    calls = []
    with CALLBACKS.restored():

        @register_callback("watch")
        class Watch(Callback):
            def on_start(self, trainer):
                calls.append(trainer.state.step)

            def on_step(self, trainer, losses):
                calls.append(losses["step"])
                assert math.isfinite(losses["loss"])
                assert trainer.model.class_capsules.weight.grad.square().sum() > 0
                if losses["step"] == 4:
                    trainer.stop()

            def on_epoch(self, trainer, row):
                calls.append(row["kind"])

            def on_end(self, trainer):
                calls.append(trainer.is_stopped)

        fit(tiny_capsnet(), images, callbacks=["watch"], **SETTINGS)
        with pytest.raises(UnknownNameError, match="unknown callback 'wacht'; did you mean 'watch"):
            fit(tiny_capsnet(), images, callbacks=["wacht"], **SETTINGS)
    assert calls == [0, 1, 2, 3, "epoch", 4, True]


class Pair(nn.Module):
    """Takes no batch of one image, and says so."""

    spec = ModelSpec(smallest_batch=2)

    def __init__(self):
        super().__init__()
        self.layers = Plain().layers
        self.sizes = []

    def forward(self, images):
        self.sizes += [len(images)] * self.training
        return self.layers(images)


def test_a_last_batch_that_is_too_small_joins_the_one_before(images):
    model = Pair()
    fit(model, images.subset(range(17)), validation=images, epochs=1, batch_size=8)
    assert model.sizes == [8, 9]
    with pytest.raises(ArgumentError, match="batch_size: expected at least 2, got 1"):
        fit(Pair(), images, batch_size=1)

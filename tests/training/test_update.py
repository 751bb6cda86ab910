"""Updates of the weights: frozen parameters, rates of their own, accumulation, the average."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torchcaps as tc
from checks import assert_equal, column
from torchcaps.errors import ArgumentError
from torchcaps.training import TrainConfig, fit, train
from torchcaps.training.callbacks import copy_state
from torchcaps.training.optimizers import OPTIMIZERS, create_optimizer, register_optimizer
from torchcaps.training.schedules import learning_rates

from .makers import Watch, assert_resumes, resume, stop_after, tiny

SETTINGS = {"epochs": 2, "batch_size": 16, "holdout": 6, "shift": 0, "seed": 3}


class Network(nn.Module):
    """Logits in float64 of a stem with a batch norm and dropout, and a head."""

    def __init__(self, has_norm=True):
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Flatten(), nn.Linear(360, 8)]
        if has_norm:
            layers += [nn.BatchNorm1d(8), nn.Dropout(0.5)]
        self.stem = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
        self.double()

    def forward(self, images):
        return self.head(self.stem(images.double()))


def optimizer_of(model, **settings):
    return create_optimizer(model, TrainConfig.of(lr=0.5, **settings).optimizer)


# Frozen parameters


def test_frozen_modules_stay_as_they_were_with_their_batch_norm(images):
    model = Network()
    before = copy_state(model)
    batches = []

    def on_step(trainer, _losses):
        model = trainer.model
        batches.append((model.stem[2].training, model.stem[3].training, model.head.training))
        assert all(parameter.grad is None for parameter in model.stem.parameters())

    fit(model, images, freeze=("stem.*",), weight_decay=0.1, callbacks=[Watch(on_step)], **SETTINGS)
    assert set(batches) == {(False, False, True)}
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]) == name.startswith("stem."), name


def test_a_layer_of_a_module_may_be_frozen_alone(images):
    model = Network()
    before = copy_state(model)
    fit(model, images, freeze=("head.0.*", "stem.1.bias"), **SETTINGS)
    unchanged = {name for name, tensor in model.named_parameters() if tensor.equal(before[name])}
    assert unchanged == {"head.0.weight", "head.0.bias", "stem.1.bias"}
    assert model.stem[2].num_batches_tracked == before["stem.2.num_batches_tracked"] + 6


def test_parameters_are_released_after_the_training(images):
    model = Network()
    model.head[0].bias.requires_grad_(False)  # by the caller: it stays so
    fit(model, images, freeze=("stem.*",), callbacks=[stop_after(1)], **SETTINGS)
    frozen = [name for name, weight in model.named_parameters() if not weight.requires_grad]
    assert frozen == ["head.0.bias"]


@pytest.mark.parametrize(
    ("patterns", "sentence"),
    [
        (("stm.*",), r"unknown trained parameter of freeze 'stm\.\*'; did you mean 'stem\."),
        (("stem.*", "head.*"), r"freeze: expected to leave parameters to train, got stem\.\*, head"),
    ],
)  # fmt: skip
def test_patterns_without_a_use_are_refused(images, patterns, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        fit(Network(), images, freeze=patterns, **SETTINGS)


# Rates of parameters


def test_the_schedule_multiplies_the_rate_of_every_group():
    model = Network(has_norm=False)
    optimizer = optimizer_of(model, lr_scale={"*": 0.5, "stem.*": 0.1, "head.2.*": 1})
    names = {weight: name for name, weight in model.named_parameters()}
    for factor in (1.0, 0.25):
        group_rates = learning_rates(optimizer, factor)
        assert group_rates[0] == 0.5 * factor
        rates = {}
        for group, rate in zip(optimizer.param_groups, group_rates, strict=True):
            rates |= {names[weight]: rate / factor for weight in group["params"]}
        assert rates == {
            "stem.1.weight": 0.05,
            "stem.1.bias": 0.05,
            "head.0.weight": 0.25,
            "head.0.bias": 0.25,
            "head.2.weight": 0.5,
            "head.2.bias": 0.5,
        }


def test_groups_of_a_registered_optimizer_keep_their_options():
    with OPTIMIZERS.restored():

        @register_optimizer("slow_bias")
        def slow_bias(parameters, lr, settings):
            biases = [weight for name, weight in parameters if name.endswith("bias")]
            matrices = [weight for name, weight in parameters if name.endswith("weight")]
            slow = {"params": biases, "lr": lr / 2, "momentum": 0.5}
            return torch.optim.SGD([{"params": matrices}, slow], lr)

        optimizer = optimizer_of(
            Network(has_norm=False), optimizer="slow_bias", lr_scale={"head.*": 0.1}
        )
    assert column(optimizer.param_groups, "lr") == [0.5, 0.05, 0.25, 0.025]
    assert column(optimizer.param_groups, "momentum") == [0, 0, 0.5, 0.5]
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 2, 1, 2]


@pytest.mark.parametrize(
    "factor",
    [
        0,
        "a tenth",
        True,
    ],
)
def test_a_factor_is_a_number_above_zero(factor):
    with pytest.raises(ArgumentError, match=r"lr_scale: expected a number above 0 for stem\.\*"):
        optimizer_of(Network(), lr_scale={"stem.*": factor})


def test_a_rate_of_frozen_parameters_is_refused(images):
    with pytest.raises(ArgumentError, match=r"unknown trained parameter of lr_scale 'stem\.\*'"):
        fit(Network(), images, freeze=("stem.*",), lr_scale={"stem.*": 0.1}, **SETTINGS)


# Accumulation


@pytest.mark.parametrize(
    ("accumulate", "loss"), [(2, "margin"), (4, "cross_entropy"), (16, "margin")]
)
def test_accumulated_batches_are_one_large_batch(images, accumulate, loss):
    """42 images make batches of 16, 16 and 10; the last one has parts of different sizes."""
    settings = SETTINGS | {"loss": loss, "class_weights": "auto", "shift": 2}
    expected, expected_history = fit(Network(has_norm=False), images, **settings)
    settings |= {"batch_size": 16 // accumulate, "accumulate": accumulate}
    model, history = fit(Network(has_norm=False), images, **settings)
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-9, atol=1e-11)
    for row, expected_row in zip(history, expected_history, strict=True):
        assert row["step"] == expected_row["step"]
        assert row["train_loss"] == pytest.approx(expected_row["train_loss"], rel=1e-9)


def test_a_batch_of_few_images_has_parts_that_a_batch_norm_can_take(images):
    """The last step of an epoch has 10 images, which are too few for 8 parts of 2."""
    _, history = fit(Network(), images, **(SETTINGS | {"batch_size": 2, "accumulate": 8}))
    assert column(history, "step") == [3, 6]


def test_the_default_batch_leaves_as_many_updates(bars, tmp_path):
    settings = {"batch_size": None, "epochs": 60}
    plain = train(tiny(bars, **settings, epoch_size=54, stop_at=0.01), tmp_path / "plain")
    assert plain.config.training.batch_size == 32
    summed = tiny(bars, **settings, epoch_size=54, stop_at=0.01, accumulate=2)
    assert train(summed, tmp_path / "summed").config.training.batch_size == 16


class Dropping(nn.Module):
    """Logits of ones after dropout, whose masks it keeps."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(64, 3)
        self.masks = []

    def forward(self, images):
        dropped = self.dropout(images.new_ones(len(images), 64))
        if self.training:
            self.masks.append(dropped)
        return self.head(dropped)


def test_no_two_parts_have_the_same_dropout(images):
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = Dropping()
        fit(model, images, **(SETTINGS | {"batch_size": 4, "accumulate": 4}))
        models.append(model)
    first, repeat = (model.masks for model in models)
    assert len(first) == 2 * 11  # an epoch has 42 images
    rows = torch.cat(first)
    assert len(rows.unique(dim=0)) == len(rows)
    assert_equal(first, repeat)  # by the seed of the training alone


class Attending(nn.Module):
    """Dropout without a layer of dropout."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(20, 2, dropout=0.5)
        self.head = nn.Linear(20, 3)

    def forward(self, images):
        rows = images.flatten(2).unflatten(2, (-1, 20))[:, 0].transpose(0, 1)
        return self.head(self.attention(rows, rows, rows)[0].mean(dim=0))


def test_the_dropout_of_attention_is_that_of_the_seed(images):
    weights = []
    for seed in (0, 1):
        torch.manual_seed(0)
        model = Attending()
        torch.manual_seed(seed)
        fit(model, images, **SETTINGS)
        weights.append(model.head.weight)
    assert torch.equal(*weights)


def test_dropout_that_begins_at_zero_is_that_of_the_seed(images):
    def set_share(trainer, _losses):
        trainer.model.dropout.p = 0.5

    masks = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = Dropping()
        model.dropout.p = 0
        fit(model, images, **SETTINGS, callbacks=[Watch(set_share)])
        masks.append(torch.cat(model.masks[1:]))
    assert torch.equal(*masks)
    assert not masks[0].all()


# The average


def test_the_average_of_the_weights_is_validated_and_kept(images):
    decay = 0.75
    trained = []
    averages = []

    def on_step(trainer, _losses):
        trained.append(copy_state(trainer.model))

    def on_epoch(trainer, _row):
        averages.append(copy_state(trainer.model))

    watch = Watch(on_step, on_epoch)
    model, history = fit(Network(), images, ema=decay, callbacks=[watch], **SETTINGS)
    for epoch, average in enumerate(averages, start=1):
        num_updates = 3 * epoch
        powers = [decay ** (num_updates - s) for s in range(1, num_updates + 1)]
        shares = torch.tensor(powers, dtype=torch.float64)
        shares /= shares.sum()
        for name, tensor in average.items():
            updates = torch.stack([weights[name] for weights in trained[:num_updates]])
            expected = updates[-1]  # of a counter
            if tensor.is_floating_point():
                expected = torch.einsum("s...,s->...", updates, shares)
            torch.testing.assert_close(tensor, expected, rtol=1e-6, atol=1e-9)
    (best,) = [row["epoch"] for row in history if row["best"]][-1:]
    assert_equal(dict(model.state_dict()), averages[best - 1])
    # The training itself does not change.
    plain = []
    watch = Watch(lambda trainer, _: plain.append(copy_state(trainer.model)))
    fit(Network(), images, callbacks=[watch], **SETTINGS)
    assert_equal(trained, plain)


def test_an_error_in_the_validation_takes_the_average_out_of_the_model(images, monkeypatch):
    trained = []
    network = Network()
    watch = Watch(lambda trainer, _: trained.append(copy_state(trainer.model)))

    def fail(*_):
        assert not torch.equal(network.state_dict()["stem.1.weight"], trained[-1]["stem.1.weight"])
        raise ZeroDivisionError

    monkeypatch.setattr(tc.tasks.Classify, "compute_metrics", fail)
    with pytest.raises(ZeroDivisionError):
        fit(network, images, ema=0.75, callbacks=[watch], **SETTINGS)
    assert_equal(dict(network.state_dict()), trained[-1])


def test_an_average_begins_anew_with_the_second_start(images, monkeypatch):
    monkeypatch.setattr(tc.tasks.Classify, "detect_collapse", lambda *_: None)
    settings = SETTINGS | {"lr": 0.0001}
    expected, _ = fit(Network(), images, ema=0.9, **settings)
    verdicts = iter([None, "every class capsule was dead"])
    monkeypatch.setattr(tc.tasks.Classify, "detect_collapse", lambda *_: next(verdicts))
    model, history = fit(Network(), images, ema=0.9, **(settings | {"lr": 0.001}))
    assert "starts again" in history[-1]["restart"]
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("step", [2, 4])
def test_a_run_with_every_setting_continues_bit_for_bit(bars, tmp_path, step):
    config = tiny(
        bars,
        batch_size=8,
        accumulate=2,
        ema=0.9,
        freeze=("conv.*",),
        lr_scale={"decoder.*": 0.5},
        balance=True,
        class_weights="auto",
        patience=1,
    )
    assert_resumes(config, tmp_path, step)


# The end


def give_scores(monkeypatch, scores):
    """The validation accuracies of the epochs to come."""
    remaining = iter(scores)

    def compute_metrics(_task, _outputs):
        return {"loss": 1.0, "accuracy": next(remaining)}

    monkeypatch.setattr(tc.tasks.Classify, "compute_metrics", compute_metrics)


def test_a_training_ends_after_epochs_without_a_better_one(bars, tmp_path, monkeypatch):
    give_scores(monkeypatch, [0.5, 0.4, 0.6, 0.6, 0.5, 0.9])
    watch = Watch()
    run = train(tiny(bars, epochs=9, patience=2), tmp_path / "run", callbacks=[watch])
    assert column(run.epochs, "epoch") == [1, 2, 3, 4, 5]
    assert (run.best_epoch, run.is_finished) == (3, True)
    sentence = "none of the last 2 epochs was better than epoch 3: the training ends"
    assert sentence in watch.messages[-1]


def test_patience_counts_anew_where_a_training_is_extended(bars, tmp_path, monkeypatch):
    give_scores(monkeypatch, [0.9, 0.5])
    run = train(tiny(bars, patience=2), tmp_path / "run")
    give_scores(monkeypatch, [0.5, 0.4, 0.3, 0.2])
    resume(run.path, epochs=6)
    assert column(run.epochs, "epoch") == [1, 2, 3, 4]
    assert (run.best_epoch, run.is_finished) == (1, True)

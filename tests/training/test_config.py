from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchcaps.errors import UnknownNameError
from torchcaps.settings import TrainConfig


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("epochs", 0, "at least 1"),
        ("epochs", True, "a whole number"),
        ("lr", 0.0, "above 0"),
        ("lr", float("nan"), "a finite number"),
        ("clip", "no", "a number"),
        ("holdout", 2.5, "a fraction below 1 or a whole count"),
        ("zoom", 0.95, "between 0 and 0.9"),
        ("seed", 2**31, f"between 0 and {2**31 - 1}"),
        ("flip", 1, "true or false"),
        ("img_size", (0, 28), "height and width in pixels"),
        ("img_size", "28", "height and width in pixels"),
        ("device", None, "text"),
        ("model_options", [1], "options by name"),
        ("model_options", {"routing": object()}, "plain values that a file can hold"),
    ],
)
def test_a_value_out_of_range_is_named_with_what_was_expected(name, value, expected):
    with pytest.raises(ValueError, match=f"^{name}: expected .*{expected}"):
        TrainConfig.of(**{name: value})


def test_an_unknown_choice_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="unknown precision 'bf32'; did you mean .*'bf16'"):
        TrainConfig.of(precision="bf32")


@pytest.mark.parametrize(
    "values",
    [
        [],
        "epochs",
    ],
)
def test_something_else_than_names_with_values_is_refused(values):
    with pytest.raises(ValueError, match="expected names with values"):
        TrainConfig.from_dict(values)


def test_a_configuration_survives_json():
    config = TrainConfig.of(
        model_options={"iterations": 2},
        img_size=(40, 28),
        clip=1.0,
        root="data",
        flip=True,
        schedule="paper",
        seed=7,
    )
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_paths_become_text_and_one_side_a_square():
    config = TrainConfig.of(data=Path("photos"), root=Path("data"), img_size=28)
    assert (config.data.name, config.data.root) == ("photos", "data")
    assert config.data.img_size == (28, 28)


def test_an_update_with_none_changes_nothing():
    config = TrainConfig.of(epochs=3, lr=0.1).updated(epochs=None, lr=0.2, shift=0)
    assert (config.training.epochs, config.optimizer.lr, config.augmentation.shift) == (3, 0.2, 0)


def test_groups_and_bare_names_say_the_same():
    grouped = TrainConfig.of(
        optimizer={"lr": 0.1, "name": "sgd"}, schedule={"name": "steps", "milestones": [3, 5]}
    )
    assert grouped == TrainConfig.of(lr=0.1, optimizer="sgd", schedule="steps", milestones=(3, 5))
    assert TrainConfig.from_dict(grouped.flat()) == grouped
    assert TrainConfig.from_dict(grouped.to_dict()) == grouped
    with pytest.raises(
        UnknownNameError, match="unknown setting of optimizer 'lrr'; did you mean 'lr'"
    ):
        TrainConfig.of(optimizer={"lrr": 0.1})


def test_defaults_fill_only_settings_that_are_not_set():
    config = TrainConfig.of(degrees=5.0).filled({"lr": 0.5, "degrees": 20.0})
    assert (config.optimizer.lr, config.augmentation.degrees) == (0.5, 5.0)

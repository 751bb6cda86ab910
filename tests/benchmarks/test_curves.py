"""Accuracy against cost: which trainings there are, one of them, and the table."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import curves
from torchcaps.training import load_recipe, register_recipe
from torchcaps.training.recipes import RECIPES

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
make_curves = pytest.importorskip("make_curves", reason="needs a checkout")
CONTENT = {
    "title": "a field",
    "published": "nothing",
    "figures": ["error"],
    "run": {"model": "cnn_baseline", "data": "digits", "holdout": 97, "batch_size": 16},
    "budgets": {"hour": {"cost": "seconds"}},
    "rows": [
        {
            "name": name,
            "run": {"model_options": {"channels": (4, 4, 4), "hidden": (8,)}},
            "within": {"hour": {"epochs": 2, "epoch_size": size}},
        }
        for name, size in [("first", 128), ("second", 64), ("first, uniform coupling", 64)]
    ],
}


@pytest.fixture
def field(restore, tmp_path, monkeypatch):
    restore(RECIPES)
    register_recipe("field-digits", CONTENT)
    monkeypatch.setattr(curves, "RESULTS", tmp_path / "curves")
    monkeypatch.setattr(curves, "NUM_BEST", 1)
    return load_recipe("field-digits")


def write_result(training, error):
    training.path.parent.mkdir(parents=True, exist_ok=True)
    result = {"system": training.row.name, "seconds": training.seconds, "error": error}
    training.path.write_text(json.dumps(result))


def test_a_quarter_of_the_images_of_a_minute_are_trained_with(field, tmp_path):
    training = next(curves.trainings("digits", 15))
    curves.train(training, None, tmp_path / "work")
    result = json.loads(training.path.read_text())
    assert result["images"] == 2 * 128 / 4
    assert 0 < result["error"] < 1
    assert result["settings"]["epochs"] == 1
    assert [*(tmp_path / "work").rglob("*.safetensors")] == []


def test_no_epoch_has_more_images_than_there_are(field, tmp_path, monkeypatch):
    class Configured(Exception):
        pass

    def stop(_run, config):
        assert config.data.epoch_size <= curves.LARGEST_EPOCH
        raise Configured

    monkeypatch.setattr(curves, "train_or_resume", stop)
    for seconds in (15, 60):
        for training in curves.trainings("mnist", seconds):
            with pytest.raises(Configured):
                curves.train(training, None, tmp_path)


def test_a_longer_training_with_more_errors_is_not_of_the_frontier():
    errors = {15: [2.0] * 3, 60: [1.0] * 3, 480: [1.5] * 3}
    assert make_curves.frontier({"a": errors}) == {15: "a", 60: "a"}


def test_eight_minutes_are_for_the_best_after_one(field):
    assert [*curves.trainings("digits", 480)] == []
    for training in curves.trainings("digits", 60):
        assert "uniform" not in training.row.name
        write_result(training, {"first": 0.3, "second": 0.2}[training.row.name])
    longest = [*curves.trainings("digits", 480)]
    assert [(training.row.name, training.seed) for training in longest] == [
        ("second", 0),
        ("second", 1),
        ("second", 2),
    ]


def test_the_table_has_complete_points_and_a_frontier(field, monkeypatch):
    monkeypatch.setattr(make_curves, "RESULTS", curves.RESULTS)
    monkeypatch.setattr(make_curves, "TITLES", {"digits": "Digits"})
    for seconds, errors in {15: (0.1, 0.2), 60: (0.15, 0.05)}.items():
        for training in curves.trainings("digits", seconds):
            mean = dict(zip(("first", "second"), errors, strict=True))[training.row.name]
            write_result(training, mean + 0.01 * (training.seed - 1))
    curves.Training(field, field.rows[0], 60, 2).path.unlink()
    assert make_curves.tables()["curves-digits"].splitlines() == [
        "| system | 15 s | 1 min | 8 min |",
        "|---|---|---|---|",
        "| second | 80.00 ± 1.00 % | **95.00 ± 1.00 %** | - |",
        "| first | **90.00 ± 1.00 %** | - | - |",
    ]

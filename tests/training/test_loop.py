"""Runs: what they leave; and one that was stopped, killed or damaged ends in the same bytes."""

from __future__ import annotations

import math
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from checks import assert_finite, column
from torchcaps.data import load_dataset, make_pairs
from torchcaps.errors import ArgumentError, DataError, RunError, TrainingError, UnknownNameError
from torchcaps.tasks import Classify
from torchcaps.training import (
    Interrupted,
    OptionError,
    Run,
    folder as folder_module,
    load,
    loop,
    train,
)
from torchcaps.training.files import load_tensors, save_tensors

from .makers import (
    TINY,
    PowerCut,
    Watch,
    assert_resumes,
    contents,
    edit_config,
    leftovers,
    resume,
    stop_after,
    tiny,
    train_until,
    write_bars,
)

LAST = "checkpoints/last.safetensors"
PREVIOUS = "checkpoints/previous.safetensors"


@pytest.fixture(scope="module")
def stopped_run(bars, tmp_path_factory):
    """The folder of such a run, stopped after step 5; it had checkpoints at 2, 3, 4 and 5."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Interrupted, match="stopped after step 5 of 6; the state is saved"):
        train(tiny(bars), folder, callbacks=[stop_after(5)])
    return folder


@pytest.fixture
def stopped(stopped_run, tmp_path):
    """A copy of the stopped run, to be changed."""
    return Path(shutil.copytree(stopped_run, tmp_path / "run"))


def test_a_run_leaves_the_rows_of_its_epochs_and_a_model_that_loads(finished, bars):
    rows = Run.open(finished).rows
    assert column(rows, "kind") == ["epoch", "epoch"]
    assert column(rows, "step") == [3, 6]
    assert column(rows, "epoch") == [1, 2]
    for row in rows:
        assert 0 <= row["val_accuracy"] <= 1
        assert math.isfinite(row["val_loss"])
        assert row["images_per_second"] > 0
    model = load(finished)
    assert model.classes == ("0", "1", "2")
    assert model(load_dataset(bars, "test").float_images()).shape == (12, 3)
    assert leftovers(finished) == []


def test_the_speed_of_an_epoch_is_that_of_its_steps_without_validation(bars, tmp_path, monkeypatch):
    seconds = 0.0
    eval_step = Classify.eval_step

    def slow_eval_step(task, batch):
        nonlocal seconds
        seconds += 100
        return eval_step(task, batch)

    def count(*_):
        nonlocal seconds
        seconds += 1

    monkeypatch.setattr(time, "perf_counter", lambda: seconds)
    monkeypatch.setattr(Classify, "eval_step", slow_eval_step)
    train(tiny(bars), tmp_path / "run", callbacks=[Watch(count)])
    for row in Run.open(tmp_path / "run").rows:
        assert row["images_per_second"] == pytest.approx(row["images"] / 3, abs=0.05)


def test_the_stored_model_is_that_of_the_best_epoch(bars, tmp_path):
    file = tmp_path / "run" / "model.safetensors"
    epochs = []

    def stored():
        return {name: tensor.numpy().tobytes() for name, tensor in load_tensors(file)[0].items()}

    def on_epoch(_trainer, row):
        epochs.append((row, stored()))

    config = tiny(bars, epochs=4, lr=0.05)
    train(config, tmp_path / "run", callbacks=[Watch(on_epoch=on_epoch)])
    best_score = (-math.inf, -math.inf)
    best_model = None
    for row, model in epochs:
        score = (row["val_accuracy"], -row["val_loss"])
        assert row["best"] == (score > best_score) == (model != best_model)
        best_score = max(score, best_score)
        best_model = model
    assert stored() == best_model


@pytest.mark.parametrize(("step", "best_epoch"), [(1, 0), (3, 1), (4, 1)])
def test_a_run_stopped_after_any_step_ends_in_the_same_bytes(
    bars, finished, tmp_path, step, best_epoch
):
    folder = tmp_path / "run"
    train_until(step, tiny(bars), folder)
    state = load_tensors(folder / LAST)[1]["state"]
    assert (state["step"], state["best_epoch"]) == (step, best_epoch)
    resume(folder)
    assert contents(folder) == contents(finished)
    assert leftovers(folder) == []


@pytest.mark.parametrize(
    ("function", "step", "last_saved"),
    [("truncate_metrics", 0, 0), ("step", 1, 0), ("save_state", 3, 2)],
)
def test_a_crash_loses_only_what_the_last_checkpoint_lacks(
    bars, finished, tmp_path, monkeypatch, function, step, last_saved
):
    """At the end of an epoch, its model and metrics are written before its checkpoint."""

    def crash(trainer, *_):
        if trainer.state.step == step:
            raise PowerCut

    watch = Watch(crash if function == "step" else None)
    if function != "step":
        original = getattr(folder_module, function)

        def crash_or_go_on(*arguments):
            state = arguments[1].state if function == "save_state" else None
            if state is None or state.step == step:
                raise PowerCut
            return original(*arguments)

        monkeypatch.setattr(folder_module, function, crash_or_go_on)
    with pytest.raises(PowerCut):
        train(tiny(bars), tmp_path / "run", callbacks=[watch])
    monkeypatch.undo()
    watch = Watch()
    resume(tmp_path / "run", callbacks=[watch])
    assert watch.steps[0] == last_saved + 1
    assert contents(tmp_path / "run") == contents(finished)


def test_rows_of_steps_come_at_intervals(bars, tmp_path, monkeypatch):
    for module in (folder_module, loop):
        monkeypatch.setattr(module, "LOG_INTERVAL", 2)
    run = train(tiny(bars, epochs=1, batch_size=9), tmp_path / "run")
    assert column(run.rows, "kind") == ["step", "step", "epoch"]
    row, later_row, _ = run.rows
    assert (row["step"], later_row["step"]) == (2, 4)
    keys = {"kind", "step", "loss", "margin", "reconstruction", "accuracy", "lr"}
    assert row.keys() == later_row.keys() == keys


def test_bf16_trains_weights_of_full_precision(bars, tmp_path):
    run = train(tiny(bars, precision="bf16"), tmp_path / "bf16")
    assert np.isfinite(column(run.rows, "val_loss")).all()
    weights, _ = load_tensors(run.model_path)
    for name, weight in weights.items():
        assert weight.dtype == torch.float32, name


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"data": "no/such/file.npz"}, DataError, "no such file or folder"),
        ({"model": "capsnot"}, UnknownNameError, "unknown model 'capsnot'; did you mean 'capsnet'"),
        ({"model_options": {"itertions": 2}}, OptionError, "itertions"),
        (
            {"model_options": {"decoder": False}, "reconstruction": 0.1},
            ValueError,
            "reconstruction: expected 0 for a model without a decoder",
        ),
        ({"holdout": 48}, DataError, "holdout: expected a count from 1 to 47, got 48"),
        (
            {"lr": 1e30, "schedule": "constant", "checkpoint_every": 100},
            TrainingError,
            "became .* there was no checkpoint yet; start again with a lower lr, or with clip",
        ),
    ],
)
def test_a_start_that_fails_leaves_no_folder(bars, tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        train(tiny(bars).updated(**changes), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_run_in_the_same_folder_is_refused_before_anything_is_read(finished):
    before = contents(finished)
    with pytest.raises(RunError, match="there is a run here already"):
        train(tiny("no/such/data.npz"), finished)
    assert contents(finished) == before


def test_a_loss_that_is_not_finite_leaves_the_last_good_checkpoint(
    bars, finished, tmp_path, monkeypatch
):
    training_step = Classify.training_step
    steps = iter(range(1, 100))

    def poisoned(self, batch, fraction_trained):
        losses = training_step(self, batch, fraction_trained)
        if next(steps) == 4:
            losses["loss"] = losses["loss"] * math.nan
        return losses

    monkeypatch.setattr(Classify, "training_step", poisoned)
    last = tmp_path / "run" / LAST
    message = f"the loss became nan after step 3; the last good state is kept in {last}"
    with pytest.raises(TrainingError, match=message):
        train(tiny(bars), tmp_path / "run")
    assert_finite(load_tensors(last)[0])
    monkeypatch.undo()
    resume(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(finished)


def test_weights_that_are_not_finite_never_replace_a_checkpoint_or_a_model(
    bars, finished, tmp_path, monkeypatch
):
    """The last step of an epoch makes them infinite; no loss after it would show that."""
    optimizer_step = torch.optim.Adam.step
    steps = iter(range(1, 100))

    def ruin(self, *args, **kwargs):
        optimizer_step(self, *args, **kwargs)
        if next(steps) == 3:
            with torch.no_grad():
                self.param_groups[0]["params"][0].fill_(math.inf)

    monkeypatch.setattr(torch.optim.Adam, "step", ruin)
    with pytest.raises(
        TrainingError, match=r"weights conv\.weight became infinite or NaN; the last"
    ):
        train(tiny(bars), tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert load_tensors(tmp_path / "run" / LAST)[1]["state"]["step"] == 2
    monkeypatch.undo()
    resume(tmp_path / "run")
    assert contents(tmp_path / "run") == contents(finished)


def test_a_resumed_run_refuses_data_that_changed(tmp_path):
    data = write_bars(tmp_path / "bars.npz")
    train_until(1, tiny(data), tmp_path / "run")
    before = (tmp_path / "run" / LAST).read_bytes()
    arrays = dict(np.load(data))
    brighter = arrays["images"].copy()
    brighter[0, 0, 0] ^= 1
    swapped = arrays["labels"].copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    for changed in ({"images": brighter}, {"labels": swapped}):
        np.savez(data, **(arrays | changed))
        with pytest.raises(RunError, match="checksum of images and labels was"):
            resume(tmp_path / "run")
    assert (tmp_path / "run" / LAST).read_bytes() == before
    np.savez(data, **arrays)
    resume(tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"lr": 0.01}, "lr was 0.001 when the run was stopped, and is 0.01 now"),
        (
            {"loss": "spread", "reconstruction": 0},
            "loss was margin when the run was stopped, and is spread now",
        ),
        (
            {"model_options": TINY | {"iterations": 1}},
            "model_options was {'channels': 8, 'primary_types': 2} when",
        ),
    ],
)
def test_a_resumed_run_refuses_a_configuration_that_was_edited(stopped, changes, sentence):
    edit_config(stopped, **changes)
    before = contents(stopped)
    with pytest.raises(RunError, match=sentence):
        resume(stopped)
    assert contents(stopped) == before


def test_a_resumed_run_may_be_elsewhere(stopped, finished):
    edit_config(stopped, root="elsewhere")
    resume(stopped)
    assert contents(stopped) == contents(finished)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"step": "7"}, ""),
        ({"step": -5}, "step: expected between 0 and 6, got -5"),
        ({"other": 1}, ""),
    ],
)
def test_a_state_that_no_training_has_is_refused(stopped, changes, sentence):
    last = stopped / LAST
    tensors, description = load_tensors(last)
    save_tensors(last, tensors, description | {"state": description["state"] | changes})
    with pytest.raises(RunError, match=f"^{last}: is not the state of this training .*{sentence}"):
        resume(stopped)


@pytest.mark.parametrize("damage", ["zeroed", "absent", "model"])
def test_from_a_damaged_checkpoint_a_run_continues_with_the_one_before_it(
    finished, stopped, damage
):
    last = stopped / LAST
    half = last.stat().st_size // 2
    if damage == "absent":
        last.unlink()
    elif damage == "model":
        shutil.copy(finished / "model.safetensors", last)
    else:
        last.write_bytes(last.read_bytes()[:half] + bytes(half))
    watch = Watch()
    resume(stopped, callbacks=[watch])
    assert watch.steps == [5, 6]
    [note] = [text for text in watch.messages if text.startswith(f"warning: {last}: is ")]
    assert note.endswith("; going on from the checkpoint before it, of step 4")
    assert contents(stopped) == contents(finished)


def test_two_damaged_checkpoints_are_named_and_stay(stopped):
    files = [stopped / LAST, stopped / PREVIOUS]
    for file in files:
        file.write_bytes(file.read_bytes()[:-1])
    before = list(map(Path.read_bytes, files))
    with pytest.raises(RunError) as raised:
        resume(stopped)
    for file in files:
        assert f"{file}: is no readable checkpoint (" in str(raised.value)
    assert list(map(Path.read_bytes, files)) == before


def test_a_set_of_pairs_trains_and_resumes(tmp_path, monkeypatch):
    """A named set, made anew in every step."""
    source = load_dataset(write_bars(tmp_path / "source.npz", count=36), "train")
    pairs = make_pairs(source, max_shift=1)
    monkeypatch.setattr("torchcaps.training.sampling.load_dataset", lambda *_, **__: pairs)
    run = assert_resumes(tiny("pairs", shift=0, reconstruction=0.0005), tmp_path, step=2)
    assert 0 <= run.rows[-1]["val_accuracy"] <= 1
    assert load(run.path).classes == ("0", "1", "2")


def test_training_ends_with_the_epoch_that_reaches_the_score_to_stop_at(bars, tmp_path):
    run = train(tiny(bars, epochs=5, stop_at=0.01), tmp_path / "run")
    rows = run.rows
    assert column(rows, "epoch") == [1]
    resume(run.path)  # it stays ended
    assert run.rows == rows


def test_a_crop_is_what_the_model_takes_and_what_prediction_does(bars, tmp_path):
    run = train(tiny(bars, crop=17, epoch_size=20), tmp_path / "run")
    assert column(run.epochs, "step") == [2, 4]
    model = load(run.path)
    assert model.img_size == (17, 17)
    assert model.preprocess(load_dataset(bars, "test").images[0]).shape == (1, 17, 17)


RECIPE = """
title = "t"
published = "p"
[run]
data = "{data}"
epochs = 2
batch_size = 16
holdout = 6
shift = 1
checkpoint_every = 2
model_options = {{ channels = 8, primary_types = 2 }}
"""


def test_names_and_paths_train_in_the_next_free_folder(bars, finished, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(RECIPE.format(data=bars))
    run = train("mine.toml", device="cpu")
    assert run.path == Path("runs/mine-bars")
    assert contents(run.path)["model.safetensors"] == contents(finished)["model.safetensors"]
    run = train("mine.toml", stop_at=0.01, device="cpu")
    assert run.path == Path("runs/mine-bars-2")
    assert train("mine.toml", resume=True, device="cpu").path == run.path  # the newest

    with pytest.raises(Interrupted):
        train("capsnet", **(tiny(bars).flat() | {"callbacks": [stop_after(1)]}))
    with pytest.raises(ArgumentError, match="epochs: expected 2, as the run was started, got 3"):
        train("capsnet", resume=True, epochs=3, data=bars)
    graphs = []
    watch = Watch(on_step=lambda trainer, _: graphs.append(trainer.config.training.graph))
    run = train("capsnet", resume=True, epochs=2, data=bars, graph="no", callbacks=[watch])
    assert run.path == Path("runs/capsnet-bars")
    assert set(graphs) == {"no"}  # the run was started with "auto"
    with pytest.raises(UnknownNameError, match="unknown recipe or model 'capsnot'; did you mean"):
        train("capsnot")

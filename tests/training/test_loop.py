from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from torchcaps.data import load_dataset, make_pairs
from torchcaps.errors import ArgumentError, DataError, RunError, TrainingError, UnknownNameError
from torchcaps.tasks import Classify
from torchcaps.training import Interrupted, OptionError, Run, TrainConfig, load, train
from torchcaps.training.checkpoint import load_tensors, save_tensors
from torchcaps.training.loop import LOG_INTERVAL

from .makers import TINY, contents, left_behind, tiny, write_bars


def stop_after(step):
    """A `should_stop` that says so once, after this many steps."""
    count = iter(range(1, 10_000))
    return lambda: next(count) == step


@pytest.fixture(scope="module")
def whole(bars, tmp_path_factory):
    """A run of 6 steps that nothing stopped."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(tiny(bars), folder)
    return folder


def test_a_run_leaves_the_rows_of_its_epochs_and_a_model_that_loads(whole, bars):
    rows = Run.open(whole).rows
    assert [(row["kind"], row["step"], row.get("epoch")) for row in rows] == [
        ("epoch", 3, 1),
        ("epoch", 6, 2),
    ]
    for row in rows:
        assert 0 <= row["val_accuracy"] <= 1
        assert math.isfinite(row["val_loss"])
        assert row["images_per_second"] > 0
    model = load(whole)
    assert model.classes == ("0", "1", "2")
    assert model(load_dataset(bars, "test").float_images()).shape == (12, 3)
    assert left_behind(whole) == []


def test_the_kept_model_is_the_one_of_the_best_epoch(bars, tmp_path):
    kept = {}

    def emit(row):
        if row["kind"] == "epoch":
            kept[row["epoch"]] = (
                row["best"],
                (tmp_path / "run" / "model.safetensors").read_bytes(),
                row,
            )

    train(tiny(bars, epochs=4, lr=0.05), tmp_path / "run", emit=emit)
    best, changed = None, []
    for epoch, (is_best, model, row) in kept.items():
        better = best is None or (row["val_accuracy"], -row["val_loss"]) > best
        assert is_best == better
        best = (row["val_accuracy"], -row["val_loss"]) if better else best
        changed.append(epoch == 1 or model != kept[epoch - 1][1])
        assert changed[-1] == is_best
    assert (
        contents(tmp_path / "run")["model.safetensors"]
        == kept[max(e for e in kept if kept[e][0])][1]
    )


@pytest.mark.parametrize("step", range(1, 7))
def test_stopped_after_any_step_and_resumed_it_ends_in_the_same_bytes(bars, whole, tmp_path, step):
    with pytest.raises(Interrupted, match=f"stopped after step {step} of 6; the state is saved"):
        train(tiny(bars), tmp_path / "run", should_stop=stop_after(step))
    train(TrainConfig(), tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == contents(whole)
    assert left_behind(tmp_path / "run") == []


class PowerCut(BaseException):
    """What no handler of errors catches."""


@pytest.mark.parametrize("step", range(1, 7))
def test_a_crash_in_any_step_loses_only_what_the_last_checkpoint_lacks(bars, whole, tmp_path, step):
    def crash(row):
        if row["kind"] == "tick" and row["step"] == step:
            raise PowerCut

    with pytest.raises(PowerCut):
        train(tiny(bars), tmp_path / "run", emit=crash)
    ticks = []
    train(tiny(bars), tmp_path / "run", resume=True, emit=lambda row: ticks.append(row["step"]))
    last_saved = max(
        saved for saved in (0, 2, 3, 4, 6) if saved < step
    )  # every 2nd step, and each epoch
    assert ticks[0] == last_saved + 1
    assert contents(tmp_path / "run") == contents(whole)


def test_a_crash_between_the_model_and_the_checkpoint_of_an_epoch_is_made_good(
    bars, whole, tmp_path, monkeypatch
):
    def crash(row):
        if row["kind"] == "epoch":
            raise PowerCut  # the model and the metrics of this epoch are written, the checkpoint is not

    with pytest.raises(PowerCut):
        train(tiny(bars), tmp_path / "run", emit=crash)
    assert (tmp_path / "run" / "model.safetensors").exists()
    train(tiny(bars), tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == contents(whole)


def test_a_finished_run_resumes_to_itself(bars, whole, tmp_path):
    run = train(tiny(bars), tmp_path / "run")
    steps = []
    train(tiny(bars), run.path, resume=True, emit=lambda row: steps.append(row))
    assert steps == []
    assert contents(run.path) == contents(whole)


def test_the_seed_decides_the_weights_and_nothing_else_does(bars, whole, tmp_path):
    torch.manual_seed(99)
    for seed in (0, 1):
        train(tiny(bars, seed=seed), tmp_path / str(seed))
    assert contents(tmp_path / "0") == contents(whole)
    for file in ("model.safetensors", "checkpoints/last.safetensors"):
        assert contents(tmp_path / "1")[file] != contents(whole)[file]


def test_rows_of_steps_come_every_so_many(bars, tmp_path):
    run = train(tiny(bars, batch_size=2, epochs=2), tmp_path / "run")
    steps = [row for row in run.rows if row["kind"] == "step"]
    assert [row["step"] for row in steps] == [LOG_INTERVAL, 2 * LOG_INTERVAL]
    assert all({"loss", "accuracy", "lr"} <= row.keys() for row in steps)


def test_color_images_that_are_not_square_train(tmp_path):
    random = np.random.default_rng(0)
    images, labels = random.random((20, 3, 24, 18), dtype=np.float32), np.arange(20) % 2
    np.savez(tmp_path / "color.npz", images=images, labels=labels)
    train(
        tiny(tmp_path / "color.npz", epochs=1, holdout=0.2, flip=True, degrees=5.0, zoom=0.1),
        tmp_path / "run",
    )
    assert load(tmp_path / "run").preprocess.to_dict() == {"img_size": [24, 18], "in_chans": 3}


def test_clipping_changes_the_steps_and_bf16_trains(bars, whole, tmp_path):
    train(tiny(bars, clip=1e-3), tmp_path / "clipped")
    assert (
        contents(tmp_path / "clipped")["model.safetensors"] != contents(whole)["model.safetensors"]
    )
    run = train(tiny(bars, precision="bf16"), tmp_path / "bf16")
    assert all(math.isfinite(row["val_loss"]) for row in run.rows)
    assert {tensor.dtype for tensor in load_tensors(run.model_path)[0].values()} == {torch.float32}


@pytest.mark.parametrize(
    ("changes", "error", "complaint"),
    [
        ({"data": "no/such/file.npz"}, DataError, "no such file or folder"),
        ({"data": "digit"}, UnknownNameError, "unknown data set 'digit'; did you mean 'digits'"),
        ({"model": "capsnot"}, UnknownNameError, "unknown model 'capsnot'; did you mean 'capsnet'"),
        ({"model_options": {"itertions": 2}}, OptionError, "itertions"),
        (
            {"model_options": {"iterations": 0}},
            ValueError,
            "iterations: expected at least 1, got 0",
        ),
        (
            {"model_options": {"decoder": False}, "reconstruction": 0.1},
            ValueError,
            "reconstruction: expected 0 for a model without a decoder",
        ),
        ({"img_size": (16, 16)}, ValueError, "at least 17x17 pixels, got 16x16"),
        ({"holdout": 48}, DataError, "holdout: expected a count from 1 to 47, got 48"),
        ({"device": "nonsense"}, RunError, "device: 'nonsense' cannot be used here"),
    ],
)
def test_a_start_that_fails_leaves_no_folder(bars, tmp_path, changes, error, complaint):
    with pytest.raises(error, match=complaint):
        train(tiny(bars).updated(**changes), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_run_in_the_same_folder_is_refused_before_anything_is_read(whole):
    before = contents(whole)
    with pytest.raises(RunError, match="there is a run here already"):
        train(tiny("no/such/data.npz"), whole)
    assert contents(whole) == before


def test_a_loss_that_diverges_before_the_first_checkpoint_leaves_nothing(bars, tmp_path):
    with pytest.raises(TrainingError) as raised:
        train(tiny(bars, lr=1e30, schedule="constant", checkpoint_every=100), tmp_path / "run")
    assert "became" in str(raised.value)
    assert "there was no checkpoint yet; start again with a lower lr, or with clip" in str(
        raised.value
    )
    assert list(tmp_path.iterdir()) == []


def poison(monkeypatch, step):
    """Make the loss of one step infinite or NaN, as a bad batch would."""
    training_step, count = Classify.training_step, iter(range(1, 10_000))

    def poisoned(self, batch, share):
        losses = training_step(self, batch, share)
        return losses | {"loss": losses["loss"] * math.nan} if next(count) == step else losses

    monkeypatch.setattr(Classify, "training_step", poisoned)


def test_a_loss_that_is_no_number_keeps_the_last_good_checkpoint(
    bars, whole, tmp_path, monkeypatch
):
    poison(monkeypatch, step=4)
    with pytest.raises(TrainingError) as raised:
        train(tiny(bars), tmp_path / "run")
    last = tmp_path / "run" / "checkpoints" / "last.safetensors"
    assert f"the loss became nan after step 3; the last good state is kept in {last}" in str(
        raised.value
    )
    assert all(tensor.isfinite().all() for tensor in load_tensors(last)[0].values())
    monkeypatch.undo()
    train(tiny(bars), tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == contents(whole)


def test_weights_that_are_no_numbers_never_replace_a_checkpoint_or_a_model(
    bars, whole, tmp_path, monkeypatch
):
    step_of = torch.optim.Adam.step
    count = iter(range(1, 10_000))

    def ruin(self, *args, **kwargs):
        step_of(self, *args, **kwargs)
        if next(count) == 3:  # the last step of the epoch: nothing after it would show a loss
            with torch.no_grad():
                self.param_groups[0]["params"][0].fill_(math.inf)

    monkeypatch.setattr(torch.optim.Adam, "step", ruin)
    with pytest.raises(
        TrainingError,
        match=r"the weights conv\.weight became infinite or NaN; the last good state is",
    ):
        train(tiny(bars), tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert (
        load_tensors(tmp_path / "run" / "checkpoints" / "last.safetensors")[1]["state"]["step"] == 2
    )
    monkeypatch.undo()
    train(tiny(bars), tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == contents(whole)


def test_a_resumed_run_refuses_data_that_changed(tmp_path):
    data = write_bars(tmp_path / "bars.npz")
    with pytest.raises(Interrupted):
        train(tiny(data), tmp_path / "run", should_stop=lambda: True)
    before = (tmp_path / "run" / "checkpoints" / "last.safetensors").read_bytes()
    for changes in ({"count": 66}, {"classes": 4}):
        write_bars(data, **changes)
        with pytest.raises(
            RunError, match=r"size of the data was .*'train': 42.* when the run was stopped"
        ):
            train(tiny(data), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "checkpoints" / "last.safetensors").read_bytes() == before


def test_a_resumed_run_refuses_other_pixels_or_labels_of_the_same_number(tmp_path):
    data = write_bars(tmp_path / "bars.npz")
    whole = dict(np.load(data))
    with pytest.raises(Interrupted):
        train(tiny(data), tmp_path / "run", should_stop=lambda: True)
    brighter, swapped = whole["images"].copy(), whole["labels"].copy()
    brighter[0, 0, 0] ^= 1
    swapped[:4] = swapped[[3, 1, 2, 0]]
    swapped[[0, 1]] = swapped[[1, 0]]
    for changed in ({"images": brighter}, {"labels": swapped}):
        np.savez(data, **(whole | changed))
        with pytest.raises(
            RunError,
            match="checksum of images and labels was .* when the run was stopped",
        ):
            train(tiny(data), tmp_path / "run", resume=True)
    np.savez(data, **whole)
    train(tiny(data), tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"lr": 0.01}, "lr was 0.001 when the run was stopped, and is 0.01 now"),
        ({"seed": 1}, "seed was 0 when the run was stopped, and is 1 now"),
        ({"epochs": 1}, "epochs was 2 when the run was stopped, and is 1 now"),
        (
            {"loss": "spread", "reconstruction": 0},
            "loss was margin when the run was stopped, and is spread now",
        ),
        (
            {"model_options": TINY | {"iterations": 1}},
            "model_options was {'channels': 8, 'primary_types': 2} when",
        ),
        ({"device": "auto", "root": "elsewhere"}, None),
    ],
)
def test_a_resumed_run_refuses_a_configuration_that_was_edited(
    bars, whole, tmp_path, changes, sentence
):
    with pytest.raises(Interrupted):
        train(tiny(bars), tmp_path / "run", should_stop=stop_after(4))
    config = tmp_path / "run" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    before = (
        contents(tmp_path / "run") if (tmp_path / "run" / "model.safetensors").exists() else None
    )
    if sentence is None:
        train(TrainConfig(), tmp_path / "run", resume=True)
        assert contents(tmp_path / "run") == contents(whole)
        return
    with pytest.raises(RunError) as raised:
        train(TrainConfig(), tmp_path / "run", resume=True)
    assert sentence in str(raised.value)
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"step": "7"}, "step: expected int, got '7'"),
        ({"step": True}, "step: expected int, got True"),
        ({"step": -5}, "step: expected 0 to 6, got -5"),
        ({"step": 10**9}, "step: expected 0 to 6, got 1000000000"),
        ({"sums": []}, ""),
        ({"sums": {"loss": 1.0}}, "sums: expected loss and count among them"),
        ({"sums": {"loss": 1.0, "count": "1"}}, "count: expected a finite number, got '1'"),
        ({"best_score": None}, "best_score: expected a finite number, got None"),
        ({"best_loss": math.inf}, "best_loss: expected a finite number, got inf"),
        ({"initial_collapse": None}, "initial_collapse: expected str, got None"),
        ({"other": 1}, ""),
    ],
)
def test_a_state_that_no_training_has_is_refused(bars, tmp_path, changes, sentence):
    with pytest.raises(Interrupted):
        train(tiny(bars), tmp_path / "run", should_stop=stop_after(1))
    last = tmp_path / "run" / "checkpoints" / "last.safetensors"
    tensors, about = load_tensors(last)
    save_tensors(last, tensors, about | {"state": about["state"] | changes})
    with pytest.raises(RunError) as raised:
        train(tiny(bars), tmp_path / "run", resume=True)
    assert str(raised.value).startswith(f"{last}: is not the state of this training (")
    assert sentence in str(raised.value)


@pytest.mark.parametrize("damage", ["zeroed", "flipped", "truncated", "model", "empty", "absent"])
def test_from_a_damaged_checkpoint_a_run_goes_on_from_the_one_before_it(
    bars, whole, tmp_path, damage
):
    with pytest.raises(Interrupted):
        train(
            tiny(bars), tmp_path / "run", should_stop=stop_after(5)
        )  # checkpoints at 2, 3, 4 and 5
    last = tmp_path / "run" / "checkpoints" / "last.safetensors"
    content = last.read_bytes()
    half = len(content) // 2
    last.write_bytes(
        {
            "zeroed": content[:half] + bytes(len(content) - half),
            "flipped": content[:half] + bytes([content[half] ^ 4]) + content[half + 1 :],
            "truncated": content[:5000],
            "empty": b"",
            "absent": b"",
            "model": (whole / "model.safetensors").read_bytes(),
        }[damage]
    )
    if damage == "absent":
        last.unlink()
    rows = []
    train(TrainConfig(), tmp_path / "run", resume=True, emit=rows.append)
    assert [(row["kind"], row["step"]) for row in rows[:2]] == [("note", 4), ("tick", 5)]
    assert rows[0]["text"].startswith(f"{last}: is ")
    assert rows[0]["text"].endswith("; going on from the checkpoint before it, of step 4")
    assert contents(tmp_path / "run") == contents(whole)


def test_two_damaged_checkpoints_are_named_and_stay(bars, tmp_path):
    with pytest.raises(Interrupted):
        train(tiny(bars), tmp_path / "run", should_stop=stop_after(3))
    both = [
        tmp_path / "run" / "checkpoints" / f"{name}.safetensors" for name in ("last", "previous")
    ]
    for file in both:
        file.write_bytes(file.read_bytes()[:-1])
    before = [file.read_bytes() for file in both]
    with pytest.raises(RunError) as raised:
        train(tiny(bars), tmp_path / "run", resume=True)
    assert all(f"{file}: is no readable checkpoint (" in str(raised.value) for file in both)
    assert [file.read_bytes() for file in both] == before


def test_resuming_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunError, match="no run folder"):
        train(TrainConfig(), tmp_path / "absent", resume=True)


def write_pairs(folder, monkeypatch):
    """A named set of pairs of bars, made anew in every step."""
    source = load_dataset(write_bars(folder / "source.npz", count=48), "train")
    monkeypatch.setattr(
        "torchcaps.training.api.load_dataset", lambda *_, **__: make_pairs(source, max_shift=1)
    )


@pytest.mark.parametrize("options", [TINY, TINY | {"decoder": False}])
def test_a_set_of_pairs_trains_resumes_and_counts_exact_matches(tmp_path, monkeypatch, options):
    write_pairs(tmp_path, monkeypatch)
    config = tiny("pairs", shift=0, reconstruction=0.0005 if options == TINY else 0.0).updated(
        model_options=options
    )
    train(config, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(config, tmp_path / "stopped", should_stop=stop_after(4))
    train(config, tmp_path / "stopped", resume=True)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")
    row = Run.open(tmp_path / "whole").rows[-1]
    assert 0 <= row["val_accuracy"] <= 1
    assert load(tmp_path / "whole").classes == ("0", "1", "2")


def test_training_ends_with_the_epoch_that_reaches_the_accuracy_to_stop_at(bars, tmp_path):
    train(tiny(bars, epochs=5, stop_at=0.01), tmp_path / "run")
    rows = Run.open(tmp_path / "run").rows
    assert [row["epoch"] for row in rows if row["kind"] == "epoch"] == [1]
    train(tiny(bars), tmp_path / "run", resume=True)  # it stays ended
    assert Run.open(tmp_path / "run").rows == rows
    train(tiny(bars, epochs=2, stop_at=1.0, lr=1e-7), tmp_path / "other")
    assert len([row for row in Run.open(tmp_path / "other").rows if row["kind"] == "epoch"]) == 2


def test_a_crop_is_what_the_model_takes_and_what_prediction_does(bars, tmp_path):
    train(tiny(bars, crop=17, epoch_size=20), tmp_path / "run")
    rows = [row for row in Run.open(tmp_path / "run").rows if row["kind"] == "epoch"]
    assert [row["step"] for row in rows] == [2, 4]
    model = load(tmp_path / "run")
    assert model.img_size == (17, 17)
    image = load_dataset(bars, "test").images[0]
    assert model.preprocess(image).shape == (1, 17, 17)


def test_names_and_paths_train_in_the_next_free_folder(bars, whole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = tiny(bars)
    (tmp_path / "mine.toml").write_text(
        f'title = "t"\npublished = "p"\n[run]\ndata = "{bars}"\nepochs = 2\nbatch_size = 16\n'
        "holdout = 6\nshift = 1\ncheckpoint_every = 2\n"
        "model_options = { channels = 8, primary_types = 2 }\n"
    )
    run = train("mine.toml", device="cpu")
    assert run.path == Path("runs/mine-bars")
    assert contents(run.path)["model.safetensors"] == contents(whole)["model.safetensors"]
    with pytest.raises(Interrupted):
        train("capsnet", should_stop=lambda: True, **config.flat())
    assert train("capsnet", resume=True, epochs=2, **{"data": bars}).path == Path(
        "runs/capsnet-bars"
    )
    with pytest.raises(ArgumentError, match="epochs: expected 2, as the run was started, got 3"):
        train("capsnet", resume=True, epochs=3, data=bars)
    assert train("mine.toml", stop_at=0.01, device="cpu").path == Path("runs/mine-bars-2")
    with pytest.raises(UnknownNameError, match="unknown recipe or model 'capsnot'; did you mean"):
        train("capsnot")

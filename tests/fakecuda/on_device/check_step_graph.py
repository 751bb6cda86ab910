"""The step of a training as a graph: it computes the same, and faults that it may have are found."""

import statistics
import time

import pytest
import torch

from fakecuda import gpu, pairs
from fakecuda.kernels import stand_ins
from fakecuda.runs import FP16, list_systems
from torchcaps.errors import ArgumentError, TrainingError
from torchcaps.training import (
    Callback,
    TrainConfig,
    Trainer,
    graph as step_graph,
    train,
)
from torchcaps.training.graph import StepGraph
from torchcaps.training.tape import Tape
from torchcaps.training.update import Updater

SYSTEM = "cnn_baseline"
SETTINGS = {"shift": 2, "ema": 0.9, "lr": 0.01}
# Systems whose step is taken without a graph, and a part of the sentence that says why.
EAGER = {
    "capsnet with everything": "gradients of several batches are summed",
}
pytestmark = pytest.mark.filterwarnings("default")
slow = pytest.mark.slow


@pytest.fixture(autouse=True)
def kernels():
    with stand_ins():
        yield


@pytest.fixture
def find_fault(tmp_path):
    """A function that trains the system with and without a graph, and says what differs."""

    def compare(**settings):
        try:
            row = pairs.compare(SYSTEM, "fp32", tmp_path, **(SETTINGS | settings))
        except (RuntimeError, TrainingError) as error:
            return str(error)
        if row["reason"]:
            return row["reason"]
        assert row["graphs"] == [True, True]
        return f"other bits in {row['differences']}" if row["differences"] else ""

    return compare


CASES = [
    pytest.param(name, precision, marks=[] if name == SYSTEM else slow)
    for precision, names in (("bf16", list_systems()), ("fp16", FP16))
    for name in names
]


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_a_graph_computes_the_same(name, precision, tmp_path):
    row = pairs.compare(name, precision, tmp_path)
    assert row["differences"] == []
    assert EAGER.get(name, "") in row["reason"]
    assert all(row["graphs"]) == (name not in EAGER)


def is_capturing():
    return torch.cuda.is_current_stream_capturing()


def test_a_rate_that_is_a_part_of_the_graph(find_fault, monkeypatch):
    rates_of_host = []

    def update_with_numbers(updater, rates, share):
        if not is_capturing():
            rates_of_host[:] = rates
        UPDATE(updater, rates_of_host, share)

    monkeypatch.setattr(Updater, "update", update_with_numbers)
    assert "other bits" in find_fault()


UPDATE = Updater.update


@slow
def test_random_numbers_of_another_step(find_fault, monkeypatch):
    """The augmentation of the captured step, for ever."""
    monkeypatch.setattr(Tape, "play", lambda tape, tensors: [*tensors, *played(tape)[2:]])

    def played(tape):
        return [tape.tensors[sent] if isinstance(sent, int) else sent for sent in tape.sent]

    assert "depends on more than the seed" in find_fault()


def test_a_loss_that_is_read_in_the_step(find_fault, change_loss):
    change_loss(lambda loss, _: loss + 0 * loss.item())
    assert "the host waits: item" in find_fault()


@slow
def test_a_tensor_of_the_host_in_the_step(find_fault, change_loss):
    change_loss(lambda loss, _: loss + torch.zeros(1).to(loss.device).sum())
    assert "unless the CPU tensor is pinned" in find_fault()


def test_a_failed_capture_leaves_the_training_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(step_graph, "find_obstacle", lambda trainer: "")
    take = StepGraph._take

    def fail(self, item, numbers):
        means = take(self, item, numbers)
        if is_capturing():
            raise ValueError("no graph today")
        return means

    monkeypatch.setattr(StepGraph, "_take", fail)
    row = pairs.compare(SYSTEM, "fp16", tmp_path, **SETTINGS)
    assert row["reason"] == "no graph today" or row["reason"] == "the setting graph is no"
    assert row["differences"] == []


class NewestLoss(Callback):
    """Keeps the loss of the newest step as the trainer has it, and as callbacks are told it."""

    is_late = True

    def __init__(self):
        self.pairs = []

    def on_step(self, trainer, losses):
        if losses["step"] == trainer.state.step:
            self.pairs.append((float(trainer.losses["loss"]), losses["loss"]))


def test_the_trainer_has_the_losses_of_the_newest_step(tmp_path):
    """Also after a batch of fewer images, the sixth of each epoch, which no replay takes."""
    newest = NewestLoss()
    config = pairs.settings(SYSTEM, "fp32", graph="yes")
    train(config, tmp_path / "run", callbacks=[newest])
    assert len(newest.pairs) > 4
    for loss, told in newest.pairs:
        assert loss == pytest.approx(told)


def test_a_graph_that_cannot_be_is_refused(tmp_path):
    config = pairs.settings(SYSTEM, "fp32", graph="yes", accumulate=2)
    with pytest.raises(ArgumentError, match="graph: expected auto or no, got yes; gradients of"):
        train(config, tmp_path / "run")
    config = TrainConfig.of(model=SYSTEM, data="digits", graph="yes", device="cpu")
    with pytest.raises(ArgumentError, match="got yes; the device is cpu"):
        train(config, tmp_path / "run")


def test_a_reason_is_said_in_a_sentence(tmp_path):
    config = pairs.settings(SYSTEM, "fp32", accumulate=2, epochs=1)
    [trainer] = pairs.trainings(config, tmp_path / "run")[-1:]
    expected = "the steps are taken without a CUDA graph: gradients of several batches are summed"
    assert expected in trainer.messages


def test_the_host_does_little_between_two_replays(tmp_path, monkeypatch):
    seconds = []
    step = Trainer.step

    def timed_step(trainer, item):
        gpu.device.set_replays(not 12 <= trainer.state.step < 212)
        start = time.perf_counter()
        step(trainer, item)
        if trainer.state.step > 12:
            seconds.append(time.perf_counter() - start)

    monkeypatch.setattr(Trainer, "step", timed_step)
    config = pairs.settings(SYSTEM, "bf16", graph="yes", epoch_size=880, shift=2)
    train(config.updated(epochs=1, checkpoint_every=1000), tmp_path / "run")
    assert statistics.median(seconds[:200]) < 1e-3  # 0.15 ms where nothing else runs

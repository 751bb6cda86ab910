"""Runs whose epochs are all done, and which are trained further."""

from __future__ import annotations

import json
import shutil

import pytest

from checks import column
from torchcaps.errors import ArgumentError, RunError
from torchcaps.tasks import Classify
from torchcaps.training import Interrupted, Run, train
from torchcaps.training.schedules import learning_rate_factor, part_ends

from .makers import PowerCut, Watch, contents, resume, stop_after, tiny, train_until

SENTENCE = (
    "the finished training goes on after epoch 2 to epoch 4; its learning rate begins at 0.0001, "
    "a tenth of the first one, and falls to zero along a cosine"
)


@pytest.fixture
def complete(finished, tmp_path):
    """A run of two epochs of three steps, to be extended."""
    return Run(shutil.copytree(finished, tmp_path / "run"))


def extend(run, epochs=4, **arguments):
    return resume(run.path, epochs=epochs, **arguments)


def comparable(folder):
    """The reproducible part of a run, without the number of its epochs and without notes."""
    parts = contents(folder)
    rows = [row | {"epochs": 0} for row in parts["metrics"] if row["kind"] != "note"]
    return parts | {"metrics": rows}


def test_a_complete_run_goes_on_with_a_schedule_of_its_own(complete, tmp_path):
    epochs_before = complete.epochs
    (complete.path / "evaluation.json").write_text("{}")
    watch = Watch()
    run = extend(complete, callbacks=[watch])
    assert watch.messages.count(SENTENCE) == 1
    assert run.notes == [SENTENCE]
    assert column(run.epochs, "epoch") == [1, 2, 3, 4]
    assert column(run.epochs, "epochs") == [2, 2, 4, 4]
    assert run.epochs[:2] == epochs_before
    assert (run.config.training.epochs, run.config.training.extended_at) == (4, (2,))
    assert run.is_finished
    assert run.figures is None  # they were those of the shorter training

    # The configuration of the run repeats it from the start.
    fresh = train(run.config, tmp_path / "fresh")
    assert comparable(fresh.path) == comparable(run.path)
    lrs = [learning_rate_factor(run.config, step, 12) for step in range(12)]
    assert lrs[:6] == [learning_rate_factor(tiny("x"), step, 6) for step in range(6)]
    assert lrs[6] == 0.1
    assert sorted(lrs[6:], reverse=True) == lrs[6:]
    assert 0 < lrs[-1] < 0.01


def test_an_extension_that_was_interrupted_resumes_bit_for_bit(complete, tmp_path):
    with pytest.raises(Interrupted, match="stopped after step 8 of 12"):
        extend(complete, callbacks=[stop_after(2)])
    assert not complete.is_finished
    extend(complete)  # the same number of epochs is no second extension
    assert complete.config.training.extended_at == (2,)
    assert complete.notes == [SENTENCE]
    fresh = train(complete.config, tmp_path / "fresh")
    assert comparable(complete.path) == comparable(fresh.path)

    repeat = extend(complete, epochs=5)
    assert repeat.config.training.extended_at == (2, 4)
    assert column(repeat.epochs, "epoch") == [1, 2, 3, 4, 5]
    assert learning_rate_factor(repeat.config, 12, 15) == 0.1


def test_killed_before_the_first_checkpoint_of_an_extension(complete, monkeypatch):
    def kill(*_):
        raise PowerCut

    with pytest.raises(PowerCut):
        extend(complete, callbacks=[Watch(kill)])
    assert complete.config.training.epochs == 4
    run = resume(complete.path)
    assert column(run.epochs, "epoch") == [1, 2, 3, 4]
    assert run.notes == [SENTENCE]


def test_only_a_complete_run_takes_more_epochs_and_never_less(complete, bars, tmp_path):
    with pytest.raises(ArgumentError, match="epochs: expected at least 2, the epochs that are"):
        extend(complete, epochs=1)
    with pytest.raises(ArgumentError, match="lr: expected 0.001, as the run was started, got 0.1"):
        extend(complete, lr=0.1)
    stopped = tmp_path / "stopped"
    train_until(5, tiny(bars), stopped)
    with pytest.raises(ArgumentError, match="got 4; only a run whose epochs are all done can be"):
        extend(Run(stopped))
    ended = train(tiny(bars, stop_at=0.01), tmp_path / "ended")  # after its first epoch
    with pytest.raises(ArgumentError, match="only a run whose epochs are all done"):
        extend(ended)
    assert Run(stopped).config.training.epochs == 2


def test_extensions_follow_one_another(complete):
    assert part_ends(tiny("x", epochs=6, extended_at=(2, 3)), 60) == [20, 30, 60]
    for extended_at in ((6,), (3, 3), (4, 2)):
        with pytest.raises(ArgumentError, match="extended_at: expected rising numbers below 6"):
            part_ends(tiny("x", epochs=6, extended_at=extended_at), 60)
    # A checkpoint of another length than the configuration says is none of this run.
    file = complete.path / "config.json"
    config = json.loads(file.read_text())
    config["training"] |= {"epochs": 6, "extended_at": [3]}
    file.write_text(json.dumps(config))
    with pytest.raises(RunError, match="epochs was 2 when the run was stopped, and is 6 now"):
        resume(complete.path)


def test_a_task_stays_at_its_end_and_is_not_started_again(complete, monkeypatch):
    fractions = []
    training_step = Classify.training_step

    def record(task, batch, fraction_trained):
        fractions.append(fraction_trained)
        return training_step(task, batch, fraction_trained)

    monkeypatch.setattr(Classify, "training_step", record)
    monkeypatch.setattr(Classify, "detect_collapse", lambda task, losses: "all is dead")
    run = extend(complete, epochs=10)
    assert fractions == [1.0] * 24
    assert run.notes == [SENTENCE.replace("epoch 4", "epoch 10")]

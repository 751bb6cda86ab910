from __future__ import annotations

import os
import signal
import sys

import pytest

from torchcaps.cli import main as main_module
from torchcaps.cli.console import UsageError
from torchcaps.errors import DataError, RunError, TrainingError, UnknownNameError

from .conftest import assert_fails


@pytest.fixture
def raising(monkeypatch, command):
    """Run a command that raises this."""

    def run(error):
        def doctor() -> int:
            """Raise."""
            raise error

        monkeypatch.setitem(main_module.COMMANDS, "doctor", doctor)
        return command("doctor")

    return run


@pytest.mark.parametrize("name", ["train", "evaluate"])
def test_an_unknown_option_names_the_help_of_its_command_and_imports(command, name):
    outcome = command(name, "capsnet --no-such-option 3")
    assert outcome.status == 2
    assert f"torchcaps {name} --help" in outcome.err
    assert "--import" in outcome.err


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (UsageError("--steps: expected 2"), 2, "--steps: expected 2"),
        (
            UnknownNameError("model", "capsnt", ["capsnet"]),
            2,
            "unknown model 'capsnt'; did you mean 'capsnet'?",
        ),
        (DataError("x.npz: damaged"), 1, "x.npz: damaged"),
        (RunError("runs/x: no run"), 1, "runs/x: no run"),
        (TrainingError("over\n  two lines"), 1, "over two lines"),
        (ValueError("bad value"), 1, "bad value"),
        (ImportError("plots need matplotlib"), 1, "plots need matplotlib"),
        (OSError(13, "Permission denied", "/a/b"), 1, "/a/b: Permission denied"),
        (MemoryError(), 1, "out of memory; take a smaller --batch-size, --img-size or model"),
        (
            RuntimeError(
                "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes."
            ),
            1,
            "out of memory; take a smaller --batch-size, --img-size or model",
        ),
    ],
)
def test_an_error_is_one_sentence_and_a_status(raising, error, status, sentence):
    assert_fails(raising(error), status, sentence)


@pytest.mark.parametrize(
    "error", [RuntimeError("shape mismatch"), TypeError("a mistake of ours"), KeyError("x")]
)
def test_a_mistake_of_the_library_is_not_hidden(raising, error):
    with pytest.raises(type(error)):
        raising(error)


def test_an_interruption_is_130(raising):
    outcome = raising(KeyboardInterrupt())
    assert (outcome.status, outcome.err) == (130, "torchcaps: interrupted\n")


def test_a_termination_unwinds_and_is_143(monkeypatch, command):
    unwound = []

    def doctor() -> int:
        """Be terminated."""
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            unwound.append(True)
        return 0

    monkeypatch.setitem(main_module.COMMANDS, "doctor", doctor)
    before = signal.getsignal(signal.SIGTERM)
    assert command("doctor").status == 143
    assert unwound == [True]
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("reader", "err"),
    [("full", "torchcaps: error: output: No space left on device\n"), ("gone", "")],
)
def test_output_that_nobody_takes_ends_without_a_traceback(monkeypatch, capsys, reader, err):
    if reader == "full":
        stream = open("/dev/full", "w")  # noqa: SIM115
    else:
        end, beginning = os.pipe()
        os.close(end)
        stream = os.fdopen(beginning, "w")
    monkeypatch.setattr(sys, "stdout", stream)
    assert main_module.main(["recipes", "--json"]) == 1
    stream.close()  # as Python does at its end
    assert capsys.readouterr().err == err


def test_streams_that_the_caller_closed_are_nowhere(monkeypatch):
    names = ("stdin", "stdout", "stderr")
    for name in names:
        monkeypatch.setattr(sys, name, None)
    assert main_module.main(["data", "list"]) == 0
    assert main_module.main(["models", "--json"]) == 0
    for name in names:
        getattr(sys, name).close()

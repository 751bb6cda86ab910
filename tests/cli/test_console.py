"""What is printed, and signals."""

from __future__ import annotations

import json
import signal
import threading
import time

import pytest

from torchcaps.cli.console import (
    LOSSY,
    UsageError,
    announce,
    graceful_stop,
    ignore_signals,
    note,
    print_json,
    print_table,
    sigterm_as_exit,
    usage,
)


def test_tables_align_whatever_the_script(capsys):
    print_table([("class", "n"), ("猫", "10"), ("ünï", "5"), ("long name", "1,000")])
    assert (
        capsys.readouterr().out
        == "class          n\n猫            10\nünï            5\nlong name  1,000\n"
    )


def test_notes_go_to_stderr_and_results_to_stdout(capsys):
    note("a note")
    print_json({"a": 1})
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ({"a": 1}, "a note\n")


def test_long_work_is_announced_and_short_work_is_not(capsys, monkeypatch):
    monkeypatch.setattr("torchcaps.cli.console.PATIENCE", 0.05)
    with announce("long work"):
        time.sleep(0.5)
    with announce("stopped") as silence:
        silence()
        time.sleep(0.2)
    monkeypatch.setattr("torchcaps.cli.console.PATIENCE", 60)
    with pytest.raises(ValueError), announce("a failure"):
        raise ValueError
    assert capsys.readouterr().err == "long work ...\n"


def test_numbers_that_json_lacks_are_never_printed(capsys):
    with pytest.raises(ValueError, match="JSON"):
        print_json({"a": float("nan")})
    assert capsys.readouterr().out == ""


def test_only_errors_of_value_are_errors_of_usage():
    with pytest.raises(UsageError, match="steps"), usage():
        raise ValueError("steps: expected 2")
    with pytest.raises(TypeError), usage():
        raise TypeError("a mistake of ours")


pytestmark = pytest.mark.usefixtures("handlers")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_noted_and_the_second_acts_at_once(number, capfd):
    with graceful_stop() as caught:
        assert caught == []
        signal.raise_signal(number)
        assert caught == [number]
        with pytest.raises(SystemExit) as stop:
            signal.raise_signal(number)
    assert stop.value.code == 128 + number
    assert capfd.readouterr().err.count("stopping after this step") == 1


def test_a_second_signal_of_the_other_kind_acts_at_once_too(capfd):
    with graceful_stop() as caught, pytest.raises(SystemExit) as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert (caught, stop.value.code) == ([signal.SIGINT], 143)


def handlers_now():
    return list(map(signal.getsignal, SIGNALS))


def test_the_former_handlers_come_back():
    before = handlers_now()
    with sigterm_as_exit(), graceful_stop():
        pass
    with pytest.raises(RuntimeError), graceful_stop():
        raise RuntimeError
    assert handlers_now() == before


def test_once_the_status_is_settled_signals_change_nothing():
    with sigterm_as_exit(), graceful_stop():
        ignore_signals()
    for number in SIGNALS:
        signal.raise_signal(number)
    assert handlers_now() == [signal.SIG_IGN] * 2


def test_outside_the_main_thread_nothing_is_changed():
    outcomes = []

    def work():
        with sigterm_as_exit(), graceful_stop() as caught:
            outcomes.append(caught)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert outcomes == [[]]


@pytest.mark.parametrize(
    ("encoding", "text"),
    [("ascii", b"+ - 0.1 -> 0.2 \\xe9"), ("cp1252", b"+ - 0.1 -> 0.2 \xe9")],
)
def test_signs_that_a_console_lacks_are_written_in_ascii(encoding, text):
    assert "✓ ✗ 0.1 → 0.2 é".encode(encoding, LOSSY) == text

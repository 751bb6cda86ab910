from __future__ import annotations

import signal
import threading

import pytest

from torchcaps.cli.console import graceful_stop, ignore_signals, sigterm_as_exit

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

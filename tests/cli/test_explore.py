from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

pytest.importorskip("starlette", reason="needs starlette")

from torchcaps.explorer import server

from .conftest import the_sentence


@pytest.fixture
def served(monkeypatch):
    """Arguments of the server, which does not start here."""
    calls = []

    def serve(sessions, **options):
        calls.append((sessions, options))
        options["log"]("http://127.0.0.1:1/")
        raise KeyboardInterrupt

    monkeypatch.setattr(server, "serve", serve)
    return calls


def test_a_run_is_opened_with_its_test_images_and_ctrl_c_is_a_good_end(command, trained, served):
    outcome = command("explore", trained, "--no-open", "--port", 9000)
    assert (outcome.status, outcome.out) == (0, "http://127.0.0.1:1/\n")
    assert outcome.err.endswith("stopped\n")
    [(sessions, options)] = served
    assert (options["host"], options["port"], options["open_page"]) == ("127.0.0.1", 9000, False)
    assert len(sessions[0].examples) == 12


def test_two_runs_are_compared(command, trained, served):
    assert command("explore", trained, trained / "model.safetensors").status == 0
    [([run, model_file], _)] = served
    assert (run.name, model_file.name) == ("run", "model.safetensors")
    assert "give --data" in model_file.note


def test_runs_of_one_name_are_named_by_their_folders(command, trained, tmp_path, served):
    for seed in ("a", "b"):
        shutil.copytree(trained, tmp_path / seed / "seed-0")
    assert command("explore", tmp_path / "a" / "seed-0", tmp_path / "b" / "seed-0").status == 0
    [([a, b], _)] = served
    assert (a.name, b.name) == ("a/seed-0", "b/seed-0")


def test_a_run_without_its_data_is_explored_without_examples(command, run, served):
    config = run / "config.json"
    config.write_text(config.read_text().replace("bars.npz", "gone.npz"))
    outcome = command("explore", run)
    assert "No test images" in outcome.err
    assert served[0][0][0].examples is None


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (["nowhere"], 1, "nowhere: no such run folder or model file"),
        (["nowhere", "--port", "70000"], 2, "--port: expected between 0 and 65535"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(command, words, status, sentence):
    outcome = command("explore", words)
    outcome = outcome._replace(err=outcome.err.removeprefix("reading the model ...\n"))
    assert outcome.status == status
    assert sentence in the_sentence(outcome)


def test_named_data_must_exist(command, trained, served):
    assert command("explore", trained, "--data", "./nothing.npz").status == 1
    assert not served


SLOW = """
import sys, time
from torchcaps.cli.main import main
from torchcaps.explorer import Session
Session.examples_of = lambda *_: time.sleep(60)  # work under way that does not end
sys.exit(main(["explore", sys.argv[1], "--no-open", "--port", "0"]))
"""
UNDER_WAY = [
    b"",
    b"GET / HTTP/1.1\r\nhost: 127",
    b"GET /api/describe HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
    b"POST /api/infer HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n{",
    b'POST /api/examples HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 11\r\n\r\n{"label":0}',
    b'POST /api/examples HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 11\r\n\r\n{"label":1}',
]


def test_sigterm_waits_for_no_client_and_for_no_work(trained):
    with (
        subprocess.Popen(
            [sys.executable, "-c", SLOW, trained],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
        ExitStack() as connected,
    ):
        address = process.stdout.readline().strip()
        assert address, process.stderr.read()
        port = int(address.rstrip("/").rpartition(":")[2])
        for request in UNDER_WAY:
            connection = connected.enter_context(
                socket.create_connection(("127.0.0.1", port), timeout=60)
            )
            connection.sendall(request)
            if b"describe" in request:
                assert b"200 OK" in connection.recv(200)
        # Once this one is answered, the requests before it have been read.
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(UNDER_WAY[2])
            assert b"200 OK" in connection.recv(200)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(3)  # the work takes a minute
        finally:
            process.kill()
        assert process.returncode == 128 + signal.SIGTERM
        assert process.stderr.read() == "reading the model ...\n"


def test_without_a_run_a_network_of_the_package_is_shown_with_digits(command, served):
    assert command("explore", "--no-open").status == 0
    [([session], _)] = served
    description = session.describe()
    assert (description["name"], description["classes"]) == ("capsnet_small", list("0123456789"))
    assert (description["data"], description["note"]) == ("digits", "")
    assert session.has_decoder
    assert session.has_routing

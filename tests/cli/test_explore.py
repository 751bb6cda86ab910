from __future__ import annotations

import signal
import subprocess
import sys
import webbrowser
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from .conftest import assert_fails


def test_a_run_becomes_a_page_that_is_opened(command, run, monkeypatch):
    addresses = []
    monkeypatch.setattr(webbrowser, "open", addresses.append)
    outcome = command("explore", run)
    page = (run / "page" / "index.html").resolve()
    assert (outcome.status, outcome.out) == (0, f"{page}\n")
    assert addresses == [page.as_uri()]
    assert command("explore", run, "--no-open").status == 0
    assert len(addresses) == 1


def test_two_runs_are_in_one_page(command, run, tmp_path):
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "model.safetensors").write_bytes(
        (run / "model.safetensors").read_bytes()
    )
    assert (
        command("explore", run, tmp_path / "second" / "model.safetensors", "--no-open").status == 0
    )
    html = (run / "page" / "index.html").read_text()
    assert '"role": "other"' in html and '"name": "second"' in html


def test_a_run_without_its_data_has_no_examples(command, run):
    config = run / "config.json"
    config.write_text(config.read_text().replace("bars.npz", "gone.npz"))
    assert command("explore", run, "--no-open").status == 0
    assert '"examples": null' in (run / "page" / "index.html").read_text()


def test_a_run_that_is_not_there_is_one_sentence(command):
    assert_fails(command("explore nowhere"), 1, "nowhere: no such run folder or model file")


def test_without_a_run_a_network_of_the_package_is_shown_with_digits(
    command, monkeypatch, tmp_path
):
    monkeypatch.setenv("HOME", str(tmp_path))
    outcome = command("explore --no-open")
    assert outcome.status == 0
    html = Path(outcome.out.strip()).read_text()
    assert Path(outcome.out.strip()).is_relative_to(tmp_path)
    assert '"name": "capsnet_small"' in html and '"accuracy": 0.99' in html


def test_a_port_serves_the_page_until_sigterm(run):
    command = [sys.executable, "-m", "torchcaps", "explore", run, "--no-open", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            address = process.stdout.readline().strip()
            connection = HTTPConnection(urlsplit(address).netloc, timeout=60)
            connection.request("GET", "/")
            page = connection.getresponse().read().decode()
            assert page.startswith("<!doctype html>")
            process.send_signal(signal.SIGTERM)
            process.wait(10)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGTERM

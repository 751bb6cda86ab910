"""The shell commands of the README, one after another."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from checks import column
from torchcaps.cli.main import main

README = Path(__file__).resolve().parents[2] / "README.md"


def shell_commands() -> list[list[str]]:
    """The words of each torchcaps command in the shell blocks of the README, in order."""
    blocks = re.findall(r"^```sh\n(.*?)^```", README.read_text(encoding="utf-8"), re.M | re.S)
    commands = []
    for line in "".join(blocks).splitlines():
        program, *words = shlex.split(line, comments=True)
        if program == "torchcaps":
            commands.append(words)
    return commands


@pytest.mark.slow  # a minute or two: a whole epoch and a diagnosis
def test_commands_of_the_readme_run_one_after_another(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    commands = shell_commands()
    assert column(commands, 0) == ["train", "evaluate", "perturb", "diagnose", "report"]

    for command in commands:
        assert main(command) == 0, f"torchcaps {shlex.join(command)}: {capsys.readouterr().err}"

    run = tmp_path / "runs" / "first"
    assert (run / "report.html").is_file()
    assert (run / "evaluation.json").is_file()
    assert list((run / "plots").glob("perturb_*.png"))

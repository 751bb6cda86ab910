"""`python -m claims` as typed, and `--import claims` of the library's commands."""

import ast
import json
from pathlib import Path

import pytest

import claims
from claims.__main__ import main
from claims.protocol import list_claims
from torchcaps.cli.main import main as run_torchcaps

FOLDER = Path(claims.__file__).parent


@pytest.fixture
def command(capsys, monkeypatch, tmp_path):
    """A function that runs a command line in an empty folder: its status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        capsys.readouterr()
        try:
            status = main(words)
        except SystemExit as stop:
            status = stop.code
        return status, *capsys.readouterr()

    return run


def test_the_table_has_a_row_for_each_claim(command):
    status, out, _ = command()
    assert status == 0
    assert {*list_claims()} <= {line.split()[0] for line in out.splitlines()}
    assert "supported" in out
    status, out, _ = command("--json", "--results", "nothing")
    assert list(json.loads(out)) == list_claims()
    assert {verdict["outcome"] for verdict in json.loads(out).values()} == {"incomplete"}


def test_results_are_read_where_the_flag_says(command, tmp_path):
    name = list_claims()[0]
    broken = tmp_path / "mine" / name / "C-0.json"
    broken.parent.mkdir(parents=True)
    broken.write_text("{}")
    for budget in ("small", "full"):
        words = (name, "--budget", budget)
        status, _, err = command(*words, "--results", "mine")
        assert status == 1
        assert f"{name}/C-0.json: is no readable result" in err
        assert command(*words)[0] == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["uncrowdin"], "unknown claim 'uncrowdin'; did you mean 'uncrowding'"),
        (["--run", "--threads", "0"], "--threads: expected between 1 and 256, got 0"),
        (["--run", "--jobs", "0"], "argument --jobs: expected at least 1, got 0"),
        (["--budget", "hour"], "invalid choice: 'hour'"),
        (["--import", "no_such_module"], "no_such_module: there is no such module"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(command, words, sentence):
    status, out, err = command(*words)
    assert status == 2
    assert sentence in err
    assert not out


def test_the_library_knows_the_names_of_claims_with_the_plug_in_alone(unregistered, capsys):
    line = ["train", "uncrowding", "--print-config"]
    assert run_torchcaps(line) == 2
    assert run_torchcaps([*line, "--import", "claims"]) == 0
    assert "vernier" in capsys.readouterr().out


def test_only_public_names_of_the_library_are_imported():
    for file in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchcaps"):
                names = [*node.module.split("."), *(alias.name for alias in node.names)]
                assert not [name for name in names if name.startswith("_")], file

"""`python -m claims` as typed, and `--import claims` of the library's commands."""

import ast
import json
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import claims
from claims.__main__ import RESULTS, main
from claims.protocol import list_claims, load_claim
from claims.results import read_results
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


def test_the_file_of_verdicts_is_made_of_the_trainings_of_this_repository(command, tmp_path):
    folder = shutil.copytree(RESULTS, tmp_path / "copy" / "claims")
    status, out, err = command("--json", "--results", str(folder))
    document = json.loads(out)
    assert json.loads(folder.with_suffix(".json").read_text()) == document
    assert json.loads(RESULTS.with_suffix(".json").read_text()) == document, (
        "claims.json is old: run python -m claims --json"
    )
    protocols = [row["protocol"] for row in document["claims"]]
    assert sorted(protocols + document["open"]) == list_claims()
    assert status == bool(document["open"])
    for row in document["claims"]:
        assert row["seeds"] >= 5
        assert row["p_value"] < 0.05 or row["verdict"] != "supported"
    for name in document["open"]:
        assert name in err
    row = document["claims"][0]  # one claim alone is judged as one of its family
    status, out, _ = command(row["protocol"], "--json")
    assert (status, json.loads(out)) == (0, {"claims": [row], "open": []})
    _, table, _ = command()
    assert {*list_claims()} <= {line.split()[0] for line in table.splitlines()}
    for row in document["claims"]:
        [line] = [line for line in table.splitlines() if line.startswith(row["protocol"] + " ")]
        assert row["verdict"] in line


def test_open_claims_have_no_row_and_are_named(command):
    status, out, err = command("--json", "--results", "nothing")
    assert status == 1
    assert json.loads(out) == {"claims": [], "open": list_claims()}
    assert f"{len(list_claims())} of {len(list_claims())} wait for trainings: affine-ch" in err


def test_a_protocol_is_older_than_its_results():
    """At the commit of each result the protocol said what it says, or says why it was changed."""
    root = FOLDER.parent
    for name in list_claims():
        claim = load_claim(name)
        for commit in {result.commit for result in read_results(claim, RESULTS)}:
            words = ["git", "-C", str(root), "show", f"{commit}:recipes/claims/{name}.toml"]
            shown = subprocess.run(words, capture_output=True, text=True, check=False)
            if shown.returncode:
                pytest.skip(f"this checkout has no commit {commit}")
            table = tomllib.loads(shown.stdout)["claim"]
            for key in ("arms", "primary", "margin"):
                now = tomllib.loads((root / f"recipes/claims/{name}.toml").read_text())["claim"]
                assert table[key] == now[key] or claim.changed


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

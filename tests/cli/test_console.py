from __future__ import annotations

import json

import pytest

from torchcaps.cli.console import UsageError, note, print_json, print_table, usage


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


def test_numbers_that_json_lacks_are_never_printed(capsys):
    with pytest.raises(ValueError, match="JSON"):
        print_json({"a": float("nan")})
    assert capsys.readouterr().out == ""


def test_only_errors_of_value_are_errors_of_usage():
    with pytest.raises(UsageError, match="steps"), usage():
        raise ValueError("steps: expected 2")
    with pytest.raises(TypeError), usage():
        raise TypeError("a mistake of ours")

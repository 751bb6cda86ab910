"""The list of built-in names, which answers a mistyped one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from torchcaps import list_models
from torchcaps.cli.names import FILE
from torchcaps.models._registry import MODELS
from torchcaps.training import list_recipes

from .conftest import the_sentence

WITHOUT_TORCH = """
import sys
from torchcaps.cli.main import main
status = main(sys.argv[1:])
assert "torch" not in sys.modules
sys.exit(status)
"""


def built_in_names():
    models = [
        name for name in list_models() if MODELS[name][0].func.__module__.startswith("torchcaps.")
    ]
    return {"model": models, "recipe": list_recipes()}


def test_the_list_has_the_names_of_the_registries():
    assert json.loads(FILE.read_text()) == built_in_names(), "in tests: python -m cli.test_names"


@pytest.mark.parametrize("words", [("train", "capsnt"), ("reproduce", "capsnet-mnst")])
def test_a_mistyped_name_is_answered_without_loading_torch(words):
    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *words],
        check=False,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 2, process.stderr
    assert "did you mean" in process.stderr
    assert len(process.stderr.splitlines()) == 1


@pytest.mark.parametrize("path", ["pictures", "data/absent"])
def test_a_path_in_place_of_a_name_is_answered_with_the_flag_for_data(command, tmp_path, path):
    (tmp_path / "pictures").mkdir()
    outcome = command("train", path)
    assert outcome.status == 2
    assert f"--data {path}" in the_sentence(outcome)


if __name__ == "__main__":
    FILE.write_text(json.dumps(built_in_names(), indent=1) + "\n")

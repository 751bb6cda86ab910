"""Every experiment at its small budget: minutes each, on request only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchcaps.data import load_dataset
from torchcaps.errors import DataError
from torchcaps.training import list_recipes, load_recipe

from .commands import run_command

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.mark.slow
@pytest.mark.parametrize("name", list_recipes())
def test_an_experiment_runs_at_its_small_budget_and_writes_its_rows(name, tmp_path):
    recipe = load_recipe(name)
    rows = recipe.rows_of("small")
    root = str(SHARED) if SHARED.is_dir() else None
    data = recipe.resolve(rows[0], "small").data
    try:
        load_dataset(data, "train", root)
    except DataError as error:
        pytest.skip(f"{data} is not at hand: {error}")
    flags = ["--root", root] if root else []
    process = run_command("reproduce", name, "--budget small --json", flags, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    results = json.loads(process.stdout)
    for entry, row in zip(results, rows, strict=True):
        assert entry["row"] == row.name
        types = map(type, map(entry["figures"].get, recipe.figures))
        assert float in types, row.name
    table = (tmp_path / "reproductions" / "results.md").read_text()
    assert table.count(f"| {name} |") == len(rows)

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from torch.nn.utils import parameters_to_vector

from torchcaps.errors import RunError, UnknownNameError
from torchcaps.reproduction import (
    read_results,
    reproduce,
    results_table,
    viewpoint_lines,
    write_table,
)
from torchcaps.reproduction.run import slug
from torchcaps.reproduction.table import RESULT_FILE
from torchcaps.training import Interrupted, Run, load
from training.makers import stop_after

from .makers import SINGLE, recipe_of


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """A finished experiment: its folder, recipe and results."""
    folder = tmp_path_factory.mktemp("done")
    recipe = recipe_of(folder)
    return folder / "out", recipe, reproduce(recipe, output=folder / "out", seeds=2)


def test_every_row_and_seed_is_a_run_that_is_measured(experiment):
    folder, recipe, results = experiment
    capsnet, cnn = recipe.rows
    expected = [(capsnet.name, 0), (capsnet.name, 1), (cnn.name, 0), (cnn.name, 1)]
    for result, (name, seed) in zip(results, expected, strict=True):
        assert (result.row, result.seed) == (name, seed)
        assert 0 <= result.figures["error"] <= 1
        assert result.epochs == 1
        assert result.seconds > 0
        assert result.command == f"torchcaps reproduce mine --budget small --seeds {seed + 1}"
        run = folder / "mine" / "small" / slug(result.row) / f"seed-{result.seed}"
        model = load(run)
        assert parameters_to_vector(model.parameters()).numel() == result.parameters
        assert Run.open(run).config.training.seed == result.seed
        evaluated = json.loads((run / "evaluation.json").read_text())
        assert evaluated["error"] == result.figures["error"]
    assert results[0].published == {"error": "1 %"}
    assert results[0].figures["error"] != results[1].figures["error"]
    assert "uniform_at_test_error" in results[0].figures
    assert "uniform_at_test_error" not in results[2].figures  # there is no routing in a CNN


def times_of_files(folder):
    """When each file below the folder was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_finished_runs_are_read_and_not_repeated(experiment):
    folder, recipe, results = experiment
    before = times_of_files(folder)
    names = []
    assert reproduce(recipe, output=folder, seeds=2, started=names.append) == results
    assert names == []
    assert times_of_files(folder) == before
    assert sorted(read_results(folder), key=str) == sorted(results, key=str)


def test_a_stopped_experiment_goes_on_where_it_was(experiment, tmp_path):
    _, recipe, results = experiment
    with pytest.raises(Interrupted):
        reproduce(recipe, output=tmp_path, callbacks=[stop_after(1)])
    assert not list(tmp_path.rglob(RESULT_FILE))
    [result] = reproduce(recipe, output=tmp_path, rows=["tiny"])
    assert result.figures["error"] == results[0].figures["error"]


def test_a_run_of_a_recipe_that_has_changed_is_refused(experiment, tmp_path):
    folder, _, results = experiment
    changed = recipe_of(tmp_path, SINGLE.replace("epoch_size = 64", "epoch_size = 96"))
    # Finished runs stay as they are.
    assert reproduce(changed, output=folder) == [results[0], results[2]]
    with pytest.raises(Interrupted):
        reproduce(recipe_of(tmp_path), output=tmp_path / "out", callbacks=[stop_after(1)])
    for size in (96, None):
        lines = f"epoch_size = {size}\n" if size else ""
        changed = recipe_of(tmp_path, SINGLE.replace("epoch_size = 64\n", lines))
        with pytest.raises(
            RunError, match=f"was started with epoch_size 64, and the recipe has {size} now; remove"
        ):
            reproduce(changed, output=tmp_path / "out")
    [file] = (tmp_path / "out").rglob("config.json")
    file.write_text("[1]")
    with pytest.raises(RunError, match="is no readable configuration"):
        reproduce(recipe_of(tmp_path), output=tmp_path / "out")


def test_a_setting_that_a_rule_decides_is_not_a_change(tmp_path):
    ruled = SINGLE.replace("batch_size = 32\n", "")
    assert ruled != SINGLE
    with pytest.raises(Interrupted):
        reproduce(recipe_of(tmp_path, ruled), output=tmp_path / "out", callbacks=[stop_after(1)])
    with pytest.raises(Interrupted):  # and not refused
        reproduce(recipe_of(tmp_path, ruled), output=tmp_path / "out", callbacks=[stop_after(1)])


def test_bad_arguments_are_refused_before_a_folder_is_made(tmp_path):
    with pytest.raises(ValueError, match="seeds: expected at least 1, got 0"):
        reproduce(recipe_of(tmp_path), output=tmp_path / "out", seeds=0)
    recipe = recipe_of(tmp_path, SINGLE.replace('["ablation"]', '["ablate"]'))
    with pytest.raises(UnknownNameError, match="unknown measure 'ablate'; did you mean 'ablation'"):
        reproduce(recipe, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_result_is_named(experiment, tmp_path):
    file = tmp_path / "mine" / "small" / "cnn" / "seed-0" / RESULT_FILE
    file.parent.mkdir(parents=True)
    file.write_text("{")
    with pytest.raises(RunError, match=r"result.json: is no readable result"):
        read_results(tmp_path)


def test_the_table_has_mean_and_deviation_over_seeds_beside_the_published_figure(experiment):
    folder, _, results = experiment
    heading, (first, second) = results_table(results)
    line = dict(zip(heading, first, strict=True))
    error0 = 100 * results[0].figures["error"]
    error1 = 100 * results[1].figures["error"]
    mean = (error0 + error1) / 2
    deviation = abs(error0 - error1) / 2**0.5
    assert f"error {mean:.2f} ± {deviation:.2f} %" in line["measured"]
    assert "uniform at test error" in line["measured"]
    assert (line["published"], line["seeds"], line["epochs"]) == ("error 1 %", "2", "1")
    assert dict(zip(heading, second, strict=True))["published"] == "-"
    assert str(results).splitlines()[0].startswith("| experiment | what | budget |")
    assert results.table() == results_table(results)
    text = write_table(results, folder).read_text()
    assert text.count("\n| mine | ") == 2
    assert "torchcaps reproduce mine --budget small" in text


def test_viewpoints_are_compared_at_equal_familiar_accuracy_seed_by_seed(experiment, tmp_path):
    _, _, results = experiment
    curves = [
        {"familiar": [0.6, 0.8], "novel": [0.5, 0.7]},
        {"familiar": [0.8, 0.9], "novel": [0.75, 0.8]},
        {"familiar": [0.7, 0.8], "novel": [0.4, 0.6]},
        {"familiar": [0.6, 0.8], "novel": [0.4, 0.55]},
    ]
    with_curves = []
    for result, curve in zip(results, curves, strict=True):
        with_curves.append(replace(result, figures=result.figures | {"curve": curve}))
    [line] = viewpoint_lines(with_curves)
    assert line == (
        "mine, small: at 80.0% on familiar views, 72.5% of novel ones for CapsNet, tiny and 57.5% "
        "for CNN: +15.0 ± 7.1 points (2 seeds)"
    )
    assert line in write_table(with_curves, tmp_path).read_text()
    [sentence] = viewpoint_lines([with_curves[0], *with_curves[2:]])
    assert (
        "70.0% of novel ones for CapsNet, tiny and 60.0% for CNN: +10.0 points (1 seed)" in sentence
    )
    assert viewpoint_lines(results) == viewpoint_lines(with_curves[:2]) == []
    assert "equal accuracy" not in write_table(results, tmp_path).read_text()


def test_names_of_rows_become_names_of_folders():
    assert slug("CapsNet, 3 iterations (with decoder)") == "capsnet-3-iterations-with-decoder"

"""torchcaps reproduce, as typed."""

from __future__ import annotations

from checks import column
from reproduction.makers import recipe_of
from torchcaps.training import list_recipes

from .conftest import succeed


def test_the_list_names_every_recipe_with_its_cost(command):
    outcome = succeed(command("reproduce", "--list"))
    for name in list_recipes():
        assert name in outcome.out


def test_without_a_recipe_the_json_is_a_list_of_them(command):
    experiments = command("reproduce", "--json").document
    assert column(experiments, "name") == list_recipes()
    for experiment in experiments:
        assert experiment["budgets"]["small"]
        assert experiment["rows"]
        assert experiment["published"]


def test_an_experiment_prints_its_table_and_writes_it(command, tmp_path, no_plots):
    recipe_of(tmp_path)
    words = ("reproduce", "mine.toml", "--output", "out", "--row", "tiny")
    outcome = succeed(command(words))
    assert "CapsNet, tiny" in outcome.out
    assert "error 1 %" in outcome.out
    assert "CNN" not in outcome.out
    assert "epoch 1/1" in outcome.err
    assert "| mine | CapsNet, tiny | small |" in (tmp_path / "out" / "results.md").read_text()
    repeated = command(words, "--json")
    assert repeated.status == 0
    assert "epoch" not in repeated.err  # it is done
    [result] = repeated.document
    assert result["row"] == "CapsNet, tiny"


def test_a_wrong_command_line_is_refused_before_a_folder_is_made(command, tmp_path):
    recipe_of(tmp_path)
    recipe = str(tmp_path / "mine.toml")
    for words, complaint in (
        (("multimnis",), "unknown recipe 'multimnis'; did you mean 'multimnist'"),
        ((recipe, "--row", "deep"), "unknown row 'deep'"),
        ((recipe, "--budget", "hour"), "unknown budget of mine 'hour'"),
        ((recipe, "--seeds", "0"), "--seeds: expected at least 1, got 0"),
    ):
        outcome = command("reproduce", words, "--output", str(tmp_path / "out"))
        assert outcome.status == 2
        assert complaint in outcome.err
    assert not (tmp_path / "out").exists()

from __future__ import annotations

import pytest

from torchcaps.data import list_datasets
from torchcaps.errors import RunError, UnknownNameError
from torchcaps.models import list_models
from torchcaps.training import Interrupted, list_recipes, load_recipe, train

from .makers import TINY

GOOD = 'title = "a title"\npublished = "nothing"\n[run]\nepochs = 3\n'


def test_there_are_recipes_for_the_first_run_and_for_the_paper():
    assert {"capsnet-digits", "capsnet-mnist", "capsnet-mnist-full"} <= set(list_recipes())


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_names_what_exists_and_takes_a_step(name, bars, tmp_path):
    recipe = load_recipe(name)
    assert recipe.title
    assert recipe.published
    assert recipe.config.model in list_models()
    assert recipe.config.data in list_datasets()
    small = recipe.config.updated(data=str(bars), holdout=6, model_options=recipe.config.model_options | TINY)
    with pytest.raises(Interrupted, match="stopped after step 1 of"):
        train(small, tmp_path / "run", should_stop=lambda: True)


def test_a_recipe_is_read_from_a_file_of_ones_own(tmp_path):
    (tmp_path / "mine.toml").write_text(GOOD)
    recipe = load_recipe(str(tmp_path / "mine.toml"))
    assert (recipe.name, recipe.title, recipe.config.epochs) == ("mine", "a title", 3)


def test_an_unknown_recipe_suggests_the_nearest():
    with pytest.raises(UnknownNameError, match="unknown recipe 'capsnet-digit'; did you mean 'capsnet-digits'"):
        load_recipe("capsnet-digit")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("title = ", "Invalid value"),
        ("", "the entry 'run' is missing"),
        ('title = "t"\n[run]\n', "the entry 'published' is missing"),
        (GOOD + "epoch = 3\n", "unknown setting 'epoch'; did you mean 'epochs'"),
        (GOOD + "lr = 0\n", "lr: expected a number above 0, got 0"),
        (GOOD + 'batch_size = "many"\n', "batch_size: expected a whole number, got 'many'"),
        ('title = "t"\npublished = "p"\nrun = 3\n', "expected names with values, got 3"),
    ],
)
def test_a_bad_recipe_file_is_named_with_its_fault(tmp_path, content, complaint):
    path = tmp_path / "bad.toml"
    path.write_text(content)
    with pytest.raises(RunError) as raised:
        load_recipe(str(path))
    assert str(raised.value).startswith(f"recipe {path}: ")
    assert complaint in str(raised.value)


def test_a_recipe_file_that_is_not_there_or_a_folder_is_named(tmp_path):
    (tmp_path / "folder.toml").mkdir()
    for name in ("absent.toml", "folder.toml"):
        with pytest.raises(RunError, match=f"{name}: cannot be read"):
            load_recipe(str(tmp_path / name))

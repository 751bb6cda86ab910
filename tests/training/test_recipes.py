from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from torchcaps.data import dataset_info
from torchcaps.errors import RunError, UnknownNameError
from torchcaps.models import create_model
from torchcaps.tasks import complete_config, task_class
from torchcaps.tasks._config import read_settings
from torchcaps.training import (
    TrainConfig,
    list_recipes,
    load_recipe,
    register_recipe,
)
from torchcaps.training.recipes import RECIPES

from .makers import TINY, train_until

# Models of millions of weights take their time.
SMALL = {
    "capsnet": TINY,
    "matrix_caps_small": {"channels": 2, "primary_types": 2, "types": [2, 2]},
}
GOOD = 'title = "a title"\npublished = "nothing"\n[run]\nepochs = 3\n'


def write_set(folder, config):
    """Random images of the size, channels and number of classes that a recipe is for.

    Sets that come with the package are themselves.
    """
    info = dataset_info(config.data.name)
    if (info.made_from or info.name) in ("digits", "planes"):
        return config.data.name
    random = np.random.default_rng(0)
    channels, height, width = info.image_shape
    labels = np.arange(4 * len(info.classes)) % len(info.classes)
    images = random.integers(0, 255, (len(labels), height, width, channels), dtype=np.uint8)
    if channels == 1:
        images = images.squeeze(-1)
    np.savez(folder / "random.npz", images=images, labels=labels)
    return str(folder / "random.npz")


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_names_what_exists(name):
    recipe = load_recipe(name)
    assert recipe.title
    assert recipe.published
    assert {"small", "full"} <= set(recipe.budgets) <= {"small", "hour", "full"}
    for budget in recipe.budgets:
        for row in recipe.rows_of(budget):
            config = recipe.resolve(row, budget)
            channels, *size = dataset_info(config.data.name).image_shape
            img_size = config.data.crop or config.data.img_size or tuple(size)
            with torch.device("meta"):  # every model takes its options and sizes
                model = create_model(
                    config.model.name, in_chans=channels, img_size=img_size, **config.model.options
                )
            # No setting is without an effect.
            task = task_class(config.task.name, model)
            read_settings(complete_config(config, task, model))


def one_recipe_of_each_model():
    """Further recipes of a model are slow, because they repeat its step."""
    models = set()
    for name in list_recipes():
        model = load_recipe(name).config.model.name
        marks = [pytest.mark.slow] if model in models or model == "segcaps" else []
        models.add(model)
        yield pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [*one_recipe_of_each_model()])
def test_a_recipe_takes_a_step(name, tmp_path):
    recipe = load_recipe(name)
    config = recipe.resolve(recipe.rows_of("small")[0], "small", batch_size=2)
    config = config.updated(data=write_set(tmp_path, config), holdout=0.25, device="cpu")
    options = config.model.options | SMALL.get(config.model.name, {})
    config = config.updated(model_options=options)
    train_until(1, config, tmp_path / "run")


def test_a_row_within_a_budget_has_the_changes_of_both(tmp_path):
    (tmp_path / "mine.toml").write_text(
        GOOD
        + """
        model_options = { iterations = 2, leaky = true }
        [budgets.small]
        cost = "little"
        run = { epochs = 1, lr = 0.5 }
        [budgets.full]
        cost = "much"
        [[rows]]
        name = "first"
        published = { error = "1 %" }
        [[rows]]
        name = "second"
        run = { model_options = { iterations = 1 }, lr = 0.25 }
        budgets = ["full"]
        within = { full = { epochs = 2 } }
        """
    )
    recipe = load_recipe(str(tmp_path / "mine.toml"))
    first, second = recipe.rows
    assert first.published == {"error": "1 %"}
    options = {"iterations": 2, "leaky": True}
    expected = TrainConfig.of(epochs=1, lr=0.5, model_options=options, seed=4)
    assert recipe.resolve(first, "small", seed=4).to_dict() == expected.to_dict()
    changed = recipe.resolve(second, "full", root=None)
    assert (changed.training.epochs, changed.optimizer.lr) == (2, 0.25)
    assert changed.model.options == {"iterations": 1}
    assert recipe.resolve(first, "full").training.epochs == 3
    assert recipe.rows_of("small") == (first,)
    with pytest.raises(UnknownNameError, match="unknown budget of mine 'hour'"):
        recipe.rows_of("hour")


def test_a_recipe_without_budgets_runs_as_it_is(tmp_path):
    (tmp_path / "mine.toml").write_text(GOOD)
    recipe = load_recipe(tmp_path / "mine.toml")
    for budget in ("small", "full"):
        [row] = recipe.rows_of(budget)
        assert recipe.resolve(row, budget) == recipe.config


def test_an_unknown_recipe_suggests_the_nearest():
    with pytest.raises(
        UnknownNameError, match="unknown recipe 'capsnet-digit'; did you mean 'capsnet-digits'"
    ):
        load_recipe("capsnet-digit")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("title = ", "Invalid value"),
        ("", "the entry 'run' is missing"),
        (GOOD + "grain = 1\n", "or 'graph'? (what a plug-in adds needs --import MODULE)"),
        (GOOD + "[budgets.small]\nrun = {}\n", "the entry 'cost' is missing"),
        (
            GOOD + '[[rows]]\nname = "a"\nwithin = { hour = { lr = 1 } }\n',
            "unknown budget of row a 'hour'",
        ),
        ('title = "t"\npublished = "p"\nrun = 3\n', "expected names with values, got 3"),
    ],
)
def test_a_bad_recipe_file_is_named_with_its_fault(tmp_path, content, complaint):
    path = tmp_path / "bad.toml"
    path.write_text(content)
    with pytest.raises(RunError, match=f"^{path}: is no readable recipe .*{re.escape(complaint)}"):
        load_recipe(str(path))


def test_a_recipe_file_that_is_not_there_or_a_folder_is_named(tmp_path):
    (tmp_path / "folder.toml").mkdir()
    for name in ("absent.toml", "folder.toml"):
        with pytest.raises(RunError, match=f"{name}: is no readable recipe"):
            load_recipe(str(tmp_path / name))


def test_a_registered_recipe_is_found_by_its_name(restore):
    restore(RECIPES)
    content = {"title": "a title", "published": "nothing", "run": {"epochs": 3}}
    register_recipe("mine", content)
    assert "mine" in list_recipes()
    assert (load_recipe("mine").name, load_recipe("mine").config.training.epochs) == ("mine", 3)
    for name in ("mine", "capsnet-digits"):
        with pytest.raises(ValueError, match=f"recipe: '{name}' is registered already"):
            register_recipe(name, content)
    with pytest.raises(RunError, match="^bad: is no readable recipe .the entry 'run' is missing"):
        register_recipe("bad", {"title": "a title"})
    assert "bad" not in list_recipes()

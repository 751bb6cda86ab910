"""Recipes: published experiments, each one declarative file."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchcaps import plugins
from torchcaps.errors import ArgumentError, UnknownNameError, check_known, read_text
from torchcaps.models import list_models
from torchcaps.registry import Registry
from torchcaps.settings import TrainConfig
from torchcaps.training.files import reading
from torchcaps.types import Json, Names, StrPath

MODEL_SHIFT = 2  # pixels by which images are shifted where a model is trained by its name


@dataclass(frozen=True)
class Row:
    """One line of an experiment's table.

    Attributes:
        name: what is trained, in words.
        published: the paper's figures, such as {"error": "0.25 ± 0.005 %"}.
        changes: settings that differ from the recipe's run; options of the model replace all of
            its options.
        budgets: in which it is run; empty is all.
        within: further changes by the budget they belong to.
    """

    name: str
    published: dict[str, str]
    changes: Json
    budgets: Names
    within: dict[str, Json]


@dataclass(frozen=True)
class RunBudget:
    """How much of an experiment is run.

    Attributes:
        cost: what that takes, in words.
        changes: settings that differ from the recipe's run.
    """

    cost: str
    changes: Json


@dataclass(frozen=True)
class Recipe:
    """A published experiment as one file: what to run, and the figures it answers to.

    Attributes:
        name: the file's stem.
        title: one line.
        published: the figure of the paper, in words, with its source.
        config: the run, at full length.
        rows: what is compared, the first one being the run itself unless it says otherwise.
        budgets: "small", "hour" and "full", or some of them; "full" changes nothing. A recipe that
            states none is run as it is by "small" and "full".
        measures: what is measured beside the evaluation that every run ends with.
        figures: which figures the table shows.
    """

    name: str
    title: str
    published: str
    config: TrainConfig
    rows: tuple[Row, ...]
    budgets: dict[str, RunBudget]
    measures: Names
    figures: Names

    def rows_of(self, budget: str) -> tuple[Row, ...]:
        """The rows that are run within a budget.

        Args:
            budget: name of one of the recipe's budgets.

        Returns:
            The rows, in the order of the recipe.

        Raises:
            UnknownNameError: for another budget.
        """
        check_known(f"budget of {self.name}", budget, self.budgets)
        return tuple(row for row in self.rows if not row.budgets or budget in row.budgets)

    def resolve(self, row: Row, budget: str, **changes: Any) -> TrainConfig:
        """The run of a row within a budget, with further changes (those that are not None).

        Args:
            row: one of the rows of the budget.
            budget: name of one of the recipe's budgets.
            changes: settings by name; None changes nothing.

        Returns:
            The configuration of the run.

        Raises:
            KeyError: the recipe has no such budget.
            ValueError: settings that a run refuses.
        """
        config = self.config
        for part in (self.budgets[budget].changes, row.changes, row.within.get(budget, {})):
            config = config.updated("recipe", **part)
        return config.updated(**changes)


RECIPES: Registry[Recipe] = Registry("recipe")


def register_recipe(name: str, content: Json, *, replace: bool = False) -> None:
    """Make a recipe known by a name, beside those that ship with the library.

    Args:
        name: of the recipe.
        content: what a recipe's `.toml` file holds.
        replace: allow a name that is taken.

    Raises:
        ArgumentError: a name that is taken, unless `replace`.
        RunError: a content that is no recipe.
    """
    with reading(name, "recipe"):
        recipe = _parse_recipe(name, content)
    if name in _recipe_files() and not replace:
        raise ArgumentError("recipe", f"{name!r} is registered already; expected another name")
    RECIPES.add(name, recipe, replace=replace)


def list_recipes() -> list[str]:
    """Names of the recipes that ship with the library, and of those that were registered."""
    return sorted({*RECIPES, *_recipe_files()})


def _recipe_files() -> dict[str, Path]:
    """The files inside the installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parents[1]
    folder = package / "recipes"
    if not folder.is_dir():
        folder = package.parents[1] / "recipes"
    return {path.stem: path for path in folder.glob("*.toml")}


def load_recipe(name_or_path: StrPath) -> Recipe:
    """Read a recipe by name, or from a `.toml` file.

    Args:
        name_or_path: a name of `list_recipes()`, or the path of a `.toml` file.

    Returns:
        The recipe.

    Raises:
        UnknownNameError: a name that is no recipe.
        RunError: a file that cannot be read as one.
    """
    name = str(name_or_path)
    if name in RECIPES:
        return RECIPES[name]
    path = Path(name) if name.endswith(".toml") else _recipe_files().get(name)
    if path is None:
        names = list_recipes()
        raise UnknownNameError("recipe", name, names, plugins.unknown_note(name, names))
    with reading(path, "recipe"):
        return _parse_recipe(path.stem, tomllib.loads(read_text(path)))


def resolve_recipe(recipe_or_config: StrPath | TrainConfig) -> TrainConfig:
    """The run that a name or a path stands for.

    Args:
        recipe_or_config: name of a recipe or of a model, path of a `.toml` file, or a
            configuration, which is returned as it is.

    Returns:
        The configuration of the run.

    Raises:
        UnknownNameError: for another name.
        RunError: for a file that is no recipe.
    """
    if isinstance(recipe_or_config, TrainConfig):
        return recipe_or_config
    name = str(recipe_or_config)
    if name in list_models():
        return TrainConfig.of(model=name).updated("model", shift=MODEL_SHIFT)
    if name in list_recipes() or name.endswith(".toml"):
        return load_recipe(name).config
    names = [*list_models(), *list_recipes()]
    raise UnknownNameError("recipe or model", name, names, plugins.unknown_note(name, names))


def default_folder(
    config: TrainConfig, recipe_or_config: StrPath | TrainConfig, resume: bool
) -> Path:
    """The folder of a run that names none: `runs/NAME`, or `runs/NAME-2` and so on.

    Args:
        config: of the run.
        recipe_or_config: what the run was started from. NAME is that of the recipe or of the model,
            followed by that of the data set unless it is part of it.
        resume: take the newest folder that is there, not the first free one.

    Returns:
        Path of the folder, below the working directory.
    """
    data = Path(config.data.name).name.split(".")[0]
    stem = config.model.name
    if not isinstance(recipe_or_config, TrainConfig):
        stem = Path(recipe_or_config).stem
    is_named = data in stem or stem.endswith(data.split("-")[0])
    name = stem if is_named else f"{stem}-{data}"
    newest = folder = Path("runs") / name
    number = 1
    while folder.exists():
        number += 1
        newest = folder
        folder = folder.with_name(f"{name}-{number}")
    return newest if resume else folder


def _parse_recipe(name: str, content: Json) -> Recipe:
    config = TrainConfig.from_dict(content["run"], "recipe")
    budgets = {
        key: RunBudget(budget["cost"], budget.get("run", {}))
        for key, budget in content.get("budgets", {}).items()
    }
    rows = []
    for entry in content.get("rows", [{"name": config.model.name}]):
        row = Row(
            entry["name"],
            entry.get("published", {}),
            entry.get("run", {}),
            tuple(entry.get("budgets", ())),
            entry.get("within", {}),
        )
        for budget in row.within:
            check_known(f"budget of row {row.name}", budget, budgets)
        rows.append(row)
    recipe = Recipe(
        name,
        content["title"],
        content["published"],
        config,
        tuple(rows),
        budgets or dict.fromkeys(("small", "full"), RunBudget("not measured", {})),
        tuple(content.get("measures", ())),
        tuple(content.get("figures", ("error",))),
    )
    for budget in recipe.budgets:
        for row in recipe.rows_of(budget):
            recipe.resolve(row, budget)  # whatever is wrong is told when the file is read
    return recipe

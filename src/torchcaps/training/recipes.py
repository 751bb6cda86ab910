"""Recipes: published experiments, each one declarative file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from torchcaps.errors import RunError, UnknownNameError
from torchcaps.training.config import TrainConfig


@dataclass(frozen=True)
class Recipe:
    """A published experiment as one file: what to run, and the figure it answers to.

    Attributes:
        name: the file's stem.
        title: one line.
        published: the figure of the paper, in words, with its source.
        config: the run.
    """

    name: str
    title: str
    published: str
    config: TrainConfig


def recipes_folder() -> Path:
    """Where the recipes are: inside the installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parents[1] / "recipes"


def list_recipes() -> list[str]:
    """Names of the recipes that ship with the library."""
    return sorted(path.stem for path in recipes_folder().glob("**/*.toml"))


def load_recipe(name_or_path: str) -> Recipe:
    """Read a recipe by name, or from a `.toml` file.

    Raises:
        UnknownNameError: for a name that is no recipe.
        RunError: for a file that cannot be read as one.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml":
        found = [p for p in recipes_folder().glob("**/*.toml") if p.stem == name_or_path]
        if not found:
            raise UnknownNameError("recipe", name_or_path, list_recipes())
        path = found[0]
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        config = TrainConfig.from_dict(content["run"])
        return Recipe(path.stem, content["title"], content["published"], config)
    except OSError as error:
        raise RunError(f"recipe {path}: cannot be read ({error.strerror})") from error
    except KeyError as error:
        raise RunError(f"recipe {path}: the entry {error} is missing") from error
    except (TypeError, ValueError) as error:  # TOML's own errors are ValueErrors
        raise RunError(f"recipe {path}: {error}") from error

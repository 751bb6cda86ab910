"""From a command line to the configuration of a training run.

The flags are derived from the settings themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torchcaps as tc
from torchcaps.cli.console import UsageError, usage
from torchcaps.cli.flags import Argument, Flag
from torchcaps.errors import UnknownNameError

if TYPE_CHECKING:
    from torchcaps.settings import TrainConfig

WITHOUT_FLAG = ("model", "model_options", "extended_at")
# Settings in the short help, `--help`; `--help-all` has all of them.
COMMON = frozenset(
    {
        "data",
        "img_size",
        "skip_damaged",
        "init",
        "backbone",
        "lr",
        "epochs",
        "batch_size",
        "device",
        "seed",
    }
)
Settings = Mapping[str, Any]  # the settings that a command line names


def list_settings(is_short: bool) -> dict[str, Argument]:
    """The settings that a command line may change, as arguments of a command, by name.

    Args:
        is_short: describe each by its first clause.
    """
    from torchcaps.data.augment import ordered_augmentations
    from torchcaps.settings import known_settings

    augmentations = ordered_augmentations()
    switches = {name for augmentation in augmentations for name in augmentation.switches}
    arguments = {}
    for name, setting in known_settings().items():
        if name in WITHOUT_FLAG:
            continue
        about = setting.about
        if is_short:
            about = about.partition(";")[0]
        elif name in switches and setting.type is not bool:
            about += "; 0 is off"
        if not re.match(r"\w+[:,]", about):  # a value comes first
            about = about[0].upper() + about[1:]
        flag = Flag(about.removesuffix(".") + ".", is_rare=name not in COMMON, is_word=True)
        arguments[name] = Argument(setting.type, setting.default, flag)
    return arguments


def resolve(recipe_or_model: str, settings: Settings, options: Mapping[str, Any]) -> TrainConfig:
    """The recipe or model of this name, with the changes of the command line.

    Args:
        recipe_or_model: a name, or the path of a `.toml` file.
        settings: those that the command line names.
        options: of the model, by name.

    Raises:
        UsageError: for a setting or an option that cannot be used.
        UnknownNameError: for a name that is neither a recipe's nor a model's.
    """
    try:
        config = tc.training.resolve_recipe(recipe_or_model)
    except UnknownNameError as error:
        if Path(recipe_or_model).exists() or "/" in recipe_or_model:
            raise UsageError(
                f"{error.argument}: expected a name, got the path {recipe_or_model}; "
                f"to train on it: --data {recipe_or_model}"
            ) from error
        raise
    with usage():
        return config.updated(**settings, model_options={**config.model.options, **options})


def format_recipe(config: TrainConfig, title: str) -> str:
    """A recipe that runs a configuration, the text of a `.toml` file; a comment has each origin.

    Args:
        config: of the run.
        title: of the recipe.
    """
    lines = [f"title = {json.dumps(title)}", 'published = "none"', "", "[run]"]
    options = []
    for name, value in config.flat().items():
        origin = config.origins.get(name, "default")
        if isinstance(value, dict) and value:
            options += ["", f"[run.{name}]  # {origin}"]
            options += [f"{key} = {json.dumps(option)}" for key, option in value.items()]
        elif value is not None and value != {}:
            lines.append(f"{name} = {json.dumps(value)}  # {origin}")
    return "\n".join([*lines, *options])

"""Examples of the documents that are commands or recipes, held against the command line and the settings."""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # of `claims`
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:torchcaps|make|python -m (?:benchmarks\.|claims))[^`]*)`")
SHELLS = ("sh", "bash", "shell")
ENDS = ("|", "||", "&&", ";", ">", "2>", "&", "do", "done")


def wrong_commands(text: str) -> Iterator[str]:
    """What is wrong with the commands in the shell blocks of a document, and in its lines."""
    for language, block in FENCE.findall(text):
        if language in SHELLS:
            for words in shell_commands(block):
                yield from _wrong(words, is_complete=True)
    for span in INLINE.findall(FENCE.sub("", text)):
        for words in shell_commands(span.replace("\n", " ")):
            yield from _wrong(words, is_complete=False)


def wrong_recipes(text: str) -> Iterator[str]:
    """What is wrong with the TOML blocks of a document that are recipes: they have a table `[run]`."""
    from torchcaps.errors import TorchcapsError
    from torchcaps.training import load_recipe

    for language, block in FENCE.findall(text):
        if language != "toml" or not re.search(r"^\[run\]", block, re.MULTILINE):
            continue
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "block.toml"
            file.write_text(block, encoding="utf-8")
            try:
                recipe = load_recipe(str(file))
                configs = [
                    recipe.resolve(row, budget)
                    for budget in recipe.budgets
                    for row in recipe.rows_of(budget)
                ]
            except (TorchcapsError, ValueError) as error:
                yield f"a recipe fails: {str(error).replace(str(file), 'block.toml')}"
                continue
        for config in configs:
            yield from _wrong_settings(config)


def unmentioned(texts: dict[str, str]) -> Iterator[str]:
    """Models and recipes that stand on no page."""
    from torchcaps import list_models
    from torchcaps.training import list_recipes

    words = set(re.findall(r"[\w-]+", "\n".join(texts.values())))
    for kind, names in (("model", list_models()), ("recipe", list_recipes())):
        for name in names:
            if name not in words:
                yield f"the {kind} {name} stands on no page"


def shell_commands(block: str) -> Iterator[list[str]]:
    """Words of each command of a shell block that is ours; a variable of the shell ends it."""
    for line in block.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line.strip().removeprefix("$ "), comments=True)
        except ValueError:
            continue
        while words:
            end = next((i for i, word in enumerate(words) if word in ENDS), len(words))
            command, words = words[:end], words[end + 1 :]
            if "torchcaps" in command and command[0] in ("torchcaps", "torchrun", "python"):
                yield command[command.index("torchcaps") :]
            elif command[:1] == ["make"] or command[:2] == ["python", "-m"]:
                yield command


def _wrong(words: list[str], is_complete: bool) -> Iterator[str]:
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
        unknown = [word for word in words[1:] if "=" not in word and word not in targets]
        yield from (f"`make {word}` is no target" for word in unknown)
    elif words[:3] == ["python", "-m", "claims"]:
        yield from _wrong_claims(words[3:])
    elif words[0] == "python":
        module = ROOT / (words[2].replace(".", "/") + ".py")
        if words[2].startswith("benchmarks") and not module.exists():
            yield f"`python -m {words[2]}`: there is no such module"
    elif len(words) > 1 and not words[1].isupper():
        yield from _wrong_command(words[1], words[2:], is_complete)


def _wrong_command(name: str, arguments: list[str], is_complete: bool) -> Iterator[str]:
    from torchcaps.cli.main import COMMANDS
    from torchcaps.cli.parser import parse

    command_text = f"`torchcaps {shlex.join([name, *arguments])}`"
    if name not in COMMANDS:
        if not name.startswith("-"):
            yield f"`torchcaps {name}` is no command"
        return
    if any(
        word == "--import" for word in arguments
    ):  # a plug-in of the page, which is no file here
        is_complete = False
    if not is_complete or any(re.search(r"\$|…|\.\.\.", word) for word in arguments):
        help_text = _help(name)
        for flag in (word.partition("=")[0] for word in arguments if re.match("--[a-z]", word)):
            if not re.search(rf"{re.escape(flag)}(?![\w-])", help_text):
                yield f"{command_text}: there is no flag {flag}"
        return
    try:
        call = parse(COMMANDS, [name, *arguments], "")
        for fault in _wrong_values(name, call):
            yield f"{command_text}: {fault}"
    except SystemExit:  # after help
        pass
    except Exception as error:
        yield f"{command_text}: {error}"


def _wrong_claims(arguments: list[str]) -> Iterator[str]:
    from claims.__main__ import parser
    from claims.protocol import load_claim
    from torchcaps.errors import TorchcapsError

    try:
        name = parser().parse_args(arguments).name
        if name is not None and not name.endswith(".toml"):
            load_claim(name)
    except (TorchcapsError, SystemExit) as error:
        yield f"`python -m claims {shlex.join(arguments)}`: {error}"


def _help(name: str) -> str:
    """The whole help of a command."""
    from torchcaps.cli.main import COMMANDS
    from torchcaps.cli.parser import HELP_ALL, parse

    printed = StringIO()
    with redirect_stdout(printed), suppress(SystemExit):
        parse(COMMANDS, [name, HELP_ALL], "")
    return printed.getvalue()


def _wrong_values(name: str, call: Any) -> Iterator[str]:
    """What the command would refuse, as far as that does not depend on files of the reader."""
    from torchcaps.cli.parser import parse_options
    from torchcaps.cli.train import resolve
    from torchcaps.data import dataset_info
    from torchcaps.training import load_recipe

    given = call.keywords
    if name == "train" and not given["recipe_or_model"].endswith(".toml"):
        options = parse_options(given.get("option", ()))
        config = resolve(given["recipe_or_model"], given.get("settings", {}), options)
        yield from _wrong_settings(config)
    elif name == "reproduce" and not (given.get("recipe") or ".toml").endswith(".toml"):
        load_recipe(given["recipe"])
    elif name == "data" and given.get("name") is not None:
        dataset_info(given["name"])


def _wrong_settings(config: Any) -> Iterator[str]:
    import torch

    from torchcaps import create_model
    from torchcaps.data import list_datasets
    from torchcaps.models import list_models

    data, model = config.data.name, config.model
    if data not in list_datasets() and not re.search(r"[/.]", data):
        yield f"{data} is no data set, and no path"
    if model.name in list_models():
        with torch.device("meta"):
            create_model(model.name, **model.options)

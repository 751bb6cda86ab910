"""Every flag of every command reaches its argument: one table of commands, one of settings."""

from __future__ import annotations

import inspect
import shlex
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin

import pytest
import torch

from torchcaps.cli.main import COMMANDS
from torchcaps.cli.parser import WITHOUT_FLAG, WITHOUT_THREADS, list_arguments, parse
from torchcaps.cli.train import resolve
from torchcaps.settings import known_settings

# Words of a command, the function that it calls, and the arguments of this call. Paths are text.
CALLS = {
    "train": (
        "capsnet --data digits --output o --option channels=9 --no-keep-memory",
        "training.train",
        {"output": "o", "resume": False},
    ),
    "evaluate": (
        "r --data d --root s --split train --skip-damaged --label-column c --label-separator , "
        "--device cpu --output o",
        "reporting.api.evaluate",
        {
            "model_or_run": "r",
            "data": "d",
            "root": "s",
            "split": "train",
            "device": "cpu",
            "output": "o",
            "skip_damaged": True,
            "label_column": "c",
            "label_separator": ",",
        },
    ),
    "predict": (
        "r a.png --top-k 3 --unknown-below 0.25 --as-is --invert no --device cpu --output o "
        "--batch-size 5 --workers 2",
        "reporting.prediction.Predictor",
        {
            "run": "r",
            "device": "cpu",
            "batch_size": 5,
            "top_k": 3,
            "unknown_below": 0.25,
            "as_is": True,
            "invert": "no",
            "output": "o",
            "workers": 2,
        },
    ),
    "reconstruct": (
        "r --images a --images b --data d --root s --per-class 3 --seed 4 --output o.png",
        "reporting.api.reconstruct_run",
        {
            "run": "r",
            "images": ("a", "b"),
            "data": "d",
            "root": "s",
            "per_class": 3,
            "seed": 4,
            "output": "o.png",
        },
    ),
    "perturb": (
        "r --images a --images b --data d --root s --span 0.5 --steps 7 --seed 4 --output o",
        "reporting.api.perturb_run",
        {
            "run": "r",
            "images": ("a", "b"),
            "data": "d",
            "root": "s",
            "span": 0.5,
            "steps": 7,
            "seed": 4,
            "output": "o",
        },
    ),
    "compare": (
        "a b --with c d --paired --margin 0.25 --adjust 0.5 0.125 --root s --device cpu",
        "reporting.evaluated.compare",
        {
            "first": ("a", "b"),
            "second": ("c", "d"),
            "paired": True,
            "margin": "0.25",
            "adjust": (0.5, 0.125),
            "root": "s",
            "device": "cpu",
        },
    ),
    "diagnose": (
        "r --data d --root s --baseline b --images 9 --seed 4 --device cpu",
        "reporting.api.diagnose",
        {
            "model_or_run": "r",
            "data": "d",
            "baseline": "b",
            "count": 9,
            "seed": 4,
            "root": "s",
            "device": "cpu",
        },
    ),
    "report": (
        "a b --output o --root s --device cpu --images 9 --diagnose 4",
        "reporting.html.report",
        {
            "run": ("a", "b"),
            "path": "o",
            "root": "s",
            "device": "cpu",
            "images": 9,
            "diagnose": 4,
        },
    ),
    "explore": (
        "a b --root s --port 81 --no-open",
        "explorer.explore",
        {"run": "a", "other": "b", "root": "s", "port": 81, "open_page": False},
    ),
    "import": ("f --output o", "training.import_weights", {"path": "f", "output": "o"}),
    "models": ("--pattern caps*", "models.list_models", {"filter": "caps*"}),
    "data": ("fetch mnist --root s", "data.fetch_dataset", {"name": "mnist", "cache_dir": "s"}),
    "reproduce": (
        "capsnet-digits --budget hour --seeds 3 --row a --row b --root s --output o --device cpu",
        "reproduction.reproduce",
        {
            "budget": "hour",
            "output": "o",
            "seeds": 3,
            "rows": ("a", "b"),
            "root": "s",
            "device": "cpu",
        },
    ),
}
# Flags that decide what is printed, or that a test of their own reads.
ELSEWHERE = {
    "json",
    "jsonl",
    "csv",
    "parquet",
    "output_file",
    "resume",
    "control",
    "print_config",
    "list",
    "table",
    "verbose",
    "engine",
    "address",
}


class Reached(Exception):
    """The function was called."""


@pytest.mark.parametrize("name", CALLS)
def test_every_flag_reaches_its_argument(name, command, monkeypatch):
    words, target, expected = CALLS[name]
    words = shlex.split(words)
    arguments = list_arguments(COMMANDS[name], is_short=False)
    has_threads = name not in WITHOUT_THREADS
    if has_threads:
        words += ["--threads", "2"]
    home, _, function = f"torchcaps.{target}".rpartition(".")
    signature = inspect.signature(getattr(import_module(home), function))
    calls = []

    def reach(*args, **kwargs):
        calls.append((signature.bind(*args, **kwargs), torch.get_num_threads()))
        raise Reached

    monkeypatch.setattr(import_module(home), function, reach)
    with pytest.raises(Reached):
        command(name, words)
    [(bound, num_threads)] = calls
    passed = bound.arguments | bound.arguments.get("options", {})
    for argument, value in expected.items():
        values = [*value] if isinstance(value, tuple) else [value]
        got = passed[argument] if isinstance(value, tuple) else [passed[argument]]
        assert [str(part) if isinstance(part, Path) else part for part in got] == values, argument
    assert num_threads == (2 if has_threads else 1)
    flags = {word for word in words if word.startswith("--")}
    for key, flag in arguments.items():
        name = key.rpartition(".")[2]
        if name in known_settings() or flag.is_positional:
            continue
        option = f"--{flag.name or name}".replace("_", "-")
        assert {option, option.replace("--", "--no-")} & flags or name in ELSEWHERE


def sample(kind, default):
    """Words that set a setting of a type to another value than its default, and this value."""
    if get_origin(kind) in (Union, UnionType):
        kind = next(each for each in get_args(kind) if each is not NoneType)
    if kind is bool:
        return [], not default
    if get_origin(kind) is Literal:
        word = next(word for word in get_args(kind) if word != default)
        return [word], word
    samples = {
        tuple[int, int]: ("20x18", (20, 18)),
        tuple[int, ...]: ("4,7", (4, 7)),
        tuple[str, ...]: ("a,b", ("a", "b")),
        dict: ("a=1,b=x", {"a": 1, "b": "x"}),
        float: ("0.25", 0.25),
        int: ("3", 3),
        str: ("word", "word"),
    }
    word, value = samples.get(kind) or samples[get_origin(kind)]
    return [word], value


SETTINGS = [name for name in known_settings() if name not in WITHOUT_FLAG]


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_reaches_the_configuration(name):
    setting = known_settings()[name]
    words, value = sample(setting.type, setting.default)
    flag = f"--{name}".replace("_", "-")
    if value is False:
        flag = flag.replace("--", "--no-")
    call = parse(COMMANDS, ["train", "capsnet", flag, *words], "")
    settings = call.keywords["settings"]
    assert settings == {name: value}
    before = resolve("capsnet", {}, {}).flat()
    assert resolve("capsnet", settings, {}).flat() == before | {name: value}
    assert value != before[name]


def test_a_flag_is_described_by_the_docstring_of_its_command():
    for name, function in COMMANDS.items():
        for key, argument in list_arguments(function, is_short=False).items():
            assert argument.help.endswith("."), (name, key)

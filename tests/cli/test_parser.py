"""Flags, help and errors of the command line."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len

import torchcaps as tc
from torchcaps.cli.main import COMMANDS
from torchcaps.cli.parser import (
    WITHOUT_FLAG,
    _make_parser as make_parser,
    _read_docstring as read_docstring,
)
from torchcaps.settings import known_settings
from torchcaps.training import load_recipe

from .conftest import assert_fails, succeed


def help_of(command, monkeypatch, *words):
    monkeypatch.setenv("COLUMNS", "80")
    outcome = command(words)
    assert (outcome.status, outcome.err) == (0, "")
    return outcome.out


@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help_fits_a_screen_with_an_example_and_says_no_python(command, monkeypatch, name):
    text = help_of(command, monkeypatch, name or (), "--help")
    lines = text.splitlines()
    assert len(lines) <= 50
    assert max(map(cell_len, lines)) <= 80
    assert not re.search(r"None|\(default: (False|True)\)", text)
    assert f"Example: torchcaps {name or 'train'}" in text


def test_a_docstring_may_have_arguments_and_attributes():
    def command(a):
        """Do it.

        Args:
            a: first.

        Attributes:
            b: second,
                in two lines.
        """

    expected = {"a": "first.", "b": "second, in two lines."}
    assert read_docstring(command) == ("Do it.", expected)


def test_a_bare_command_lists_every_command_once_in_groups(command):
    outcome = succeed(command())
    assert outcome.out == succeed(command("--help")).out == succeed(command("--help-all")).out
    starts = [line.split()[0] for line in outcome.out.splitlines() if line.startswith("  ")]
    assert sorted(starts) == sorted(COMMANDS)


def test_the_whole_help_has_every_setting_with_its_default(command, monkeypatch):
    text = help_of(command, monkeypatch, "train --help-all")
    flags = {name.replace("_", "-") for name in known_settings()} - {
        name.replace("_", "-") for name in WITHOUT_FLAG
    }
    for flag in flags:
        assert re.search(rf"--{flag}\b", text), flag
    assert re.search(r"--epochs INT.*\(default: 10\)", text)
    assert "--flip, --no-flip" in text
    assert "--precision auto|fp32|tf32|bf16|fp16" in text


def test_the_short_help_leaves_rare_settings_out(command, monkeypatch):
    text = help_of(command, monkeypatch, "train --help")
    assert "--epochs" in text
    assert "such as iterations=2 or routing=em" in " ".join(text.split())
    assert "--optimizer-options" not in text


# Command lines, and how their sentences begin.
WRONG_LINES = (
    ("trian", "unknown command 'trian'; did you mean 'train'?"),
    ("train", "the following arguments are required: NAME"),
    ("train capsnt", "unknown recipe or model 'capsnt'; did you mean 'capsnet'"),
    ("train data/own", "recipe or model: expected a name, got the path data/own; to train on it: "
                       "--data data/own"),
    ("train capsnet more", "expected no further words, got more"),
    ("train capsnet --data digit", "unknown data set 'digit'; did you mean 'digits'"),
    ("train capsnet --epoch 3", "unknown flag '--epoch'; did you mean '--epochs'"),
    ("train capsnet --epoch=3", "unknown flag '--epoch'; did you mean '--epochs'"),
    ("train capsnet --epochs", "--epochs: expected one argument"),
    ("train capsnet --epochs x", "--epochs: expected INT, got 'x'"),
    ("train capsnet --epochs 0", "epochs: expected at least 1, got 0"),
    ("train capsnet --threads 0", "--threads: expected between 1 and 256, got 0"),
    ("train capsnet --lr fast", "--lr: expected FLOAT, got 'fast'"),
    ("train capsnet --precision fp8",
     "--precision: expected auto|fp32|tf32|bf16|fp16, got 'fp8'"),
    ("train capsnet --no-flip=1", "--flip/--no-flip: ignored explicit argument '1'"),
    ("train capsnet --img-size 5x", "--img-size: expected INTxINT|INT, got '5x'"),
    ("train capsnet --img-size 32 --crop 40x40", "--crop: expected INT, got '40x40'"),
    ("train capsnet --milestones 1,a", "--milestones: expected INT,..., got '1,a'"),
    ("train capsnet --option iterations", "--option: expected name=value, got 'iterations'"),
    ("train capsnet --option =2", "--option: expected name=value, got '=2'"),
    ("train capsnet --lr-scale stem", "--lr-scale: expected NAME=VALUE,..., got 'stem'"),
    ("audit resnet20", "--data: expected a data set, got none"),
    ("diagnose x --count 5", "unknown flag '--count'; known: --baseline, --data"),
    ("diagnose x --images 1", "--images: expected at least 2, got 1"),
    ("explore x --port 70000", "--port: expected between 0 and 65535"),
    ("predict x y --unknown-below low", "--unknown-below: expected FLOAT|auto, got 'low'"),
    ("predict x y --invert maybe", "--invert: expected auto|yes|no, got 'maybe'"),
    ("reconstruct x --per-class 0", "--per-class: expected at least 1, got 0"),
    ("perturb x --steps 1", "--steps: expected at least 2, got 1"),
    ("perturb x --span nan", "--span: expected at least 0, got nan"),
    ("report", "runs: expected one run folder or more, got none"),
    ("report x --images 0", "--images: expected at least 1, got 0"),
    ("report x --diagnose 1", "--diagnose: expected 0 or at least 2, got 1"),
    ("compare --with a", "runs: expected one run folder or more, got none"),
    ("compare a", "runs: expected two run folders, or --with, got 1"),
    ("compare a b --with c",
     "--with: expected one run of each method or several of each, got 1 and 2"),
    ("compare a --with ./a", "runs: expected different run folders, got one of them twice"),
    ("compare a --with b --margin 0", "margin: expected a share such as 10%, or a difference in "
                                      "accuracy such as 0.01, got 0"),
    ("compare a b --adjust 0.1 1.5", "--adjust: expected between 0 and 1, got 1.5"),
    ("compare a --with b --paired", "--paired: expected several runs of each method, got one"),
    ("data fetch", "name: expected the data set to fetch, got nothing"),
    ("data verify", "name: expected the data set to verify, got nothing"),
    ("data fetch mnits", "unknown data set 'mnits'; did you mean 'mnist'"),
    ("data verify mnits", "unknown data set 'mnits'; did you mean 'mnist'"),
)  # fmt: skip


@pytest.mark.parametrize(("line", "sentence"), WRONG_LINES)
def test_a_wrong_command_line_is_one_sentence_and_leaves_nothing(command, tmp_path, line, sentence):
    assert_fails(command(line), 2, sentence)
    assert list(tmp_path.iterdir()) == []


def config_of(command, tmp_path, *words):
    """The configuration that a command line stands for."""
    outcome = succeed(command("train", words, "--print-config"))
    file = tmp_path / "printed.toml"
    file.write_text(outcome.out)
    return load_recipe(file).config


def test_names_of_other_tools_are_understood(command, tmp_path):
    words = "--batch 16 --imgsz 32x48 --learning-rate 0.1 --num_epochs 3 --wd 0.5"
    config = config_of(command, tmp_path, "capsnet", words)
    settings = {"batch_size": 16, "img_size": (32, 48), "lr": 0.1, "epochs": 3}
    assert config == tc.training.resolve_config("capsnet", weight_decay=0.5, **settings)


def test_a_printed_configuration_is_a_recipe_of_the_same_run(command, tmp_path):
    words = "capsnet-digits --no-flip --seed 4 --option iterations=2 --option grouping=position"
    config = config_of(command, tmp_path, words)
    recipe = load_recipe("capsnet-digits").config
    options = recipe.model.options | {"iterations": 2, "grouping": "position"}
    recipe = recipe.updated(seed=4, flip=False, model_options=options)
    assert config == tc.training.resolve_config(recipe)
    assert not (tmp_path / "runs").exists()


def test_options_may_have_commas_and_patterns(command, tmp_path):
    words = ("--optimizer-options", "betas=[0.8,0.9],eps=1e-7", "--lr-scale", "stem.*=0.5,b=2")
    config = config_of(command, tmp_path, "capsnet", *words)
    assert config.optimizer.lr_scale == {"stem.*": 0.5, "b": 2}
    assert config.optimizer.options == {"betas": [0.8, 0.9], "eps": 1e-7}


@pytest.mark.parametrize("is_short", [True, False])
def test_a_description_may_have_a_percent_sign(is_short):
    def accept(path: str, *, share: str = "3 %"):
        """Accept pictures.

        Args:
            path: Of which 5 % are used.
            share: Or 10 % of them.
        """

    text = make_parser("accept", accept, is_short).format_help()
    assert re.search(r"PATH +Of which 5 % are used\.", text)
    assert "Or 10 % of them. (default: 3 %)" in text


def test_a_size_is_one_word_so_that_the_name_may_follow(command, tmp_path):
    config = config_of(command, tmp_path, "--img-size 32 capsnet")
    assert (config.model.name, config.data.img_size) == ("capsnet", (32, 32))


def test_the_version_is_printed(command):
    outcome = command("--version")
    assert (outcome.status, outcome.out) == (0, "torchcaps 0.1.0\n")


@pytest.mark.parametrize("words", ["models", "recipes", "data list", "doctor", "reproduce --list"])
def test_tables_fit_a_screen(command, words):
    assert max(map(cell_len, command(words).out.splitlines())) <= 80

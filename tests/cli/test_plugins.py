"""The file of docs/plugins.md through the command line, with no change to the library."""

from __future__ import annotations

import json
import re
import sys
from contextlib import ExitStack, nullcontext
from importlib import metadata
from pathlib import Path

import pytest

import torchcaps as tc
from e2e.commands import SMALL
from torchcaps import plugins
from torchcaps.data import _registry as data_registry
from torchcaps.data.augment import AUGMENTATIONS
from torchcaps.errors import RunError
from torchcaps.models import _registry as model_registry
from torchcaps.nn import routers
from torchcaps.reproduction import MEASURES
from torchcaps.tasks.metrics import METRICS
from torchcaps.training import Run, recipes
from torchcaps.training.callbacks import CALLBACKS

from .conftest import assert_fails, python_block, succeed, the_sentence

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
REGISTRIES = (
    routers.ROUTERS,
    model_registry.MODELS,
    data_registry.DATASETS,
    MEASURES,
    recipes.RECIPES,
    AUGMENTATIONS,
    METRICS,
    CALLBACKS,
)
FILES = {"dimming", "noise", "stripes", "broken", "inner"}
IMPORT = "--import stripes.py"
pytestmark = pytest.mark.usefixtures("no_plots")


@pytest.fixture
def fresh_command(command):
    """Run a command as in a process of its own: afterwards its imports are forgotten."""

    def run(*words):
        path = list(sys.path)
        modules = set(sys.modules)
        plugins._loaded.clear()
        try:
            with ExitStack() as stack:
                for registry in REGISTRIES:
                    stack.enter_context(registry.restored())
                return command(words)
        finally:
            for name in FILES & (sys.modules.keys() - modules):
                del sys.modules[name]
            sys.path[:] = path
            for state in (plugins._imported, plugins._failures, plugins._loaded):
                state.clear()

    return run


@pytest.fixture
def stripes(tmp_path):
    """The file of the page."""
    path = tmp_path / "stripes.py"
    path.write_text(python_block(PAGE), encoding="utf-8")
    return path


@pytest.fixture
def entry_points(monkeypatch):
    """Install entry points, by name and value, as far as the library can see."""

    def install(**points):
        installed = metadata.EntryPoints(
            metadata.EntryPoint(name, value, plugins.GROUP) for name, value in points.items()
        )
        monkeypatch.setattr(metadata, "entry_points", installed.select)

    return install


def train(fresh_command, *words):
    flags = "--epochs 1 --no-keep-memory --threads 1 --output run"
    return fresh_command("train stripes", flags, words)


@pytest.mark.parametrize(
    ("words", "name", "module"),
    [
        ("models", "stripesnet", "stripes.py"),
        ("data list", "stripes", "stripes"),
        ("recipes", "stripes", "stripes.py"),
    ],
)
def test_lists_have_what_the_file_adds(fresh_command, stripes, words, name, module):
    out = fresh_command(words, "--import", module).out
    assert re.search(rf"^{name}\b", out, re.MULTILINE)
    assert not re.search(rf"^{name}\b", fresh_command(words).out, re.MULTILINE)


def test_a_small_addition_is_a_file_that_is_imported_as_it_stands(fresh_command, bars, tmp_path):
    (tmp_path / "dimming.py").write_text(python_block(PAGE, "dimming.py"), encoding="utf-8")
    (tmp_path / "noise.py").write_text(python_block(PAGE.with_name("data.md"), "noise.py"))
    start = ("train capsnet --data", bars, "--epochs 1 --holdout 6", SMALL)
    flags = "--dim 0.3 --noise 0.1 --metrics mean_length --callbacks lengths --output run"
    imports = "--import dimming.py --import noise.py"
    outcome = succeed(fresh_command(start, flags, imports))
    assert "augmentation: shift 2, dim 0.3, noise 0.1" in outcome.err
    run = Run(tmp_path / "run")
    [row] = run.epochs
    assert run.notes[-1] == f"mean length {row['val_mean_length']:.3f}"
    outcome = succeed(fresh_command("evaluate run --json", imports))
    assert 0 < outcome.document["mean_length"] < 1
    outcome = fresh_command(start, "--dim 2", imports)
    assert_fails(outcome, 2, "dim: expected between 0 and 1, got 2.0")
    assert_fails(fresh_command(start, "--dim 0.3"), 2, "unknown flag '--dim'")


def test_a_run_goes_on_with_the_module(fresh_command, stripes, monkeypatch):
    start = "train stripesnet --epochs 1 --holdout 6 --no-keep-memory"
    with monkeypatch.context() as patch:
        patch.setattr(
            "torchcaps.cli.console.graceful_stop", lambda patient: nullcontext([15])
        )  # stop after the first step
        outcome = fresh_command(start, SMALL, "--data stripes", IMPORT)
    assert outcome.status == 143
    words = "train stripesnet --output runs/stripesnet --resume"
    assert f"{words} --import stripes.py" in outcome.err
    outcome = fresh_command(words)
    assert outcome.status == 2
    assert "runs/stripesnet was started with --import stripes.py" in the_sentence(outcome)
    assert "stripes" not in sys.modules
    assert fresh_command(words, IMPORT).status == 0


def test_a_default_folder_is_asked_too(fresh_command, stripes, bars):
    start = ("train capsnet --data", bars, "--epochs 1 --holdout 6", SMALL)
    assert fresh_command(start, "--option routing=one-pass", IMPORT).status == 0
    outcome = fresh_command("train capsnet --data", bars, "--resume")
    assert outcome.status == 2
    sentence = the_sentence(outcome)
    assert sentence.startswith("unknown routing 'one-pass'")
    assert "runs/capsnet-bars was started with --import stripes.py" in sentence


def test_an_experiment_takes_the_recipe_and_its_measure(fresh_command, stripes, tmp_path):
    outcome = succeed(fresh_command("reproduce stripes --row one --threads 1 --json", IMPORT))
    [result] = outcome.document
    assert 0 <= result["figures"]["mirrored_accuracy"] <= 1
    assert (
        result["command"]
        == "torchcaps reproduce stripes --budget small --seeds 1 --import stripes.py"
    )
    assert "unknown recipe 'stripes'" in the_sentence(fresh_command("reproduce stripes"))


def test_a_run_imports_nothing_and_says_what_is_missing(fresh_command, stripes, tmp_path):
    assert train(fresh_command, IMPORT).status == 0
    (tmp_path / "x.png").touch()
    for words in (
        "evaluate run",
        "evaluate run/model.safetensors --data digits",
        "predict run x.png",
        "report run",
        "reconstruct run",
        "explore run --no-open",
    ):
        outcome = fresh_command(words)
        assert outcome.status == 2
        assert "torchcaps: error: " in outcome.err
        assert (
            "unknown model 'stripesnet'" in outcome.err
            or "unknown data set 'stripes'" in outcome.err
        )
        assert outcome.err.endswith(
            "run was started with --import stripes.py: "
            "give that to this command too, if you trust the module\n"
        )
        assert "stripes" not in sys.modules
    with pytest.raises(RunError, match="unknown model 'stripesnet'"):
        tc.load(tmp_path / "run")
    assert "stripes" not in sys.modules


def test_imports_of_a_run_are_printed_without_control_characters(fresh_command, run):
    (run / "environment.json").write_text(json.dumps({"imports": ["a\nb\x1b[2J"]}))
    sentence = the_sentence(fresh_command("evaluate run --data nothing"))
    assert "run was started with --import 'a b\\x1b[2J': give" in sentence


@pytest.mark.parametrize("imports", [None, [1]])
def test_imports_of_a_run_that_are_no_list_of_names_are_ignored(fresh_command, run, imports):
    facts = json.loads((run / "environment.json").read_text())
    (run / "environment.json").write_text(json.dumps(facts | {"imports": imports}))
    assert fresh_command("evaluate run --data nothing").status == 2
    assert fresh_command("evaluate run").status == 0


@pytest.mark.parametrize(
    ("content", "name", "status", "sentence"),
    [
        (None, "broken", 2, "--import broken: there is no such module, installed or in {here}"),
        (None, "broken.py", 2, "--import broken.py: no such file"),
        ("1 / 0", "broken", 1, "broken: cannot be imported (ZeroDivisionError: division by zero)"),
        ("raise ValueError('a\\nb')", "broken", 1, "broken: cannot be imported (ValueError: a b)"),
        (
            "x = 1",
            "json.py",
            1,
            "json.py: 'json' is the name of another module, or of none; rename the file",
        ),
    ],
)
def test_a_module_that_is_absent_or_fails_is_one_sentence(
    fresh_command, tmp_path, content, name, status, sentence
):
    if content is not None:
        (tmp_path / name).with_suffix(".py").write_text(content)
    assert_fails(fresh_command("models --import", name), status, sentence.format(here=tmp_path))


def test_a_file_may_import_what_is_beside_it(fresh_command, tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "inner.py").write_text("found = True")
    (tmp_path / "far" / "broken.py").write_text("import inner\nassert inner.found")
    assert fresh_command("models --import far/broken.py --import inner").status == 0


def test_entry_points_are_found_and_one_that_fails_is_a_line_on_stderr(
    fresh_command, stripes, entry_points, monkeypatch, tmp_path
):
    monkeypatch.syspath_prepend(tmp_path)
    entry_points(bad="no_such_module", good="stripes")
    outcome = succeed(fresh_command("models"))
    assert "stripesnet" in outcome.out
    reason = (
        "the plug-in 'bad' of an unknown package cannot be loaded "
        "(ModuleNotFoundError: No module named 'no_such_module')"
    )
    assert outcome.err == f"torchcaps: warning: {reason}\n"
    outcome = fresh_command("train nonesuch")
    assert outcome.status == 2
    assert outcome.err.endswith(f"({reason})\n")

"""Commands that train: recipes, experiments, routers and images of the user."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch

import torchcaps as tc
from checks import column
from data.makers import picture, write_folder
from reproduction.makers import recipe_of
from torchcaps.nn import routers as registry
from torchcaps.tasks import Classify
from torchcaps.training import Run, list_recipes
from training.makers import contents, leftovers

from .conftest import RESUME, assert_fails, first_words, python_block, succeed, the_sentence

pytestmark = pytest.mark.usefixtures("no_plots")


def test_training_prints_the_table_and_leaves_the_run(command, start, tmp_path):
    outcome = succeed(command(start))
    lines = outcome.out.splitlines()
    heads = ["class", "accuracy", "correct", "count", "precision", "F1", "AUROC"]
    assert lines[0].split() == heads
    assert first_words(lines[1:6]) == ["0", "1", "2", "mean", "all"]
    assert lines[-1] == "run folder: runs/capsnet-bars"
    assert "epoch 1/2" in outcome.err
    assert "epoch 2/2" in outcome.err
    run = tmp_path / "runs" / "capsnet-bars"
    assert {"config.json", "model.safetensors", "evaluation.json"} <= set(os.listdir(run))
    assert leftovers(run) == []


def test_a_folder_that_is_taken_is_refused_before_images_are_read(command, start, run, monkeypatch):
    monkeypatch.setattr(tc.training.sampling, "load_images", None)
    assert_fails(command(start, "--output", run), 1, f"{run}: there is a run here already")


def test_a_finished_run_resumes_at_once_and_prints_its_table_again(command, start):
    finished = command(start, "--output out --resume")
    assert "out: nothing to resume; starting" in finished.err
    before = contents(Path("out"))
    resumed = command(start, "--output out --resume")
    assert resumed.status == 0
    assert contents(Path("out")) == before
    assert resumed.out == finished.out
    assert "epoch 1/" not in resumed.err
    assert "all 2 epochs are done; resume it with more of them, such as --epochs 4" in resumed.err


def test_a_finished_run_is_trained_further_and_evaluated_anew(command, run):
    outcome = succeed(command("train capsnet --output", run, "--resume --epochs 5"))
    assert "goes on after epoch 3 to epoch 5; its learning rate begins at 0.001" in outcome.err
    assert "epoch 5/5" in outcome.err
    assert "epoch 3/" not in outcome.err
    assert Run(run).is_finished
    assert Run(run).figures["accuracy"] >= 0


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--data digits", "data: expected "),
        ("--option channels=16", "model_options: expected {'channels': 8, "),
        ("--option iterations=2", "model_options: expected {'channels': 8, "),
    ],
)
def test_a_resumed_run_refuses_other_settings(command, run, flags, sentence):
    before = contents(run)
    assert_fails(command("train capsnet --output", run, "--resume", flags), 2, sentence)
    assert contents(run) == before


def test_a_resumed_run_takes_as_many_threads_as_before_and_warns_of_another_number(
    command, start, monkeypatch
):
    counts = []
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    command(start, "--output out")
    count = Run("out").environment["threads"]
    monkeypatch.setattr(torch, "get_num_threads", lambda: count + 2)
    counts.clear()
    assert "--threads" not in command(RESUME, "--output out").err
    assert counts == [1, count, count + 2, 1]
    monkeypatch.setattr(torch, "get_num_threads", lambda: count + 1)
    outcome = command(RESUME, "--output out --threads", count + 1)
    sentence = f"--threads: the run was started with {count}; with {count + 1} it will not"
    assert sentence in outcome.err
    assert counts[4:] == [1, *[count + 1] * 3, 1]


@pytest.mark.parametrize(
    ("threads", "sentence"),
    [
        (0, "threads: expected "),
        (True, "threads: expected "),
        ("two", "threads: expected "),
        (2, "threads was 1 when the run was stopped, and is 2 now"),
    ],
)
def test_other_threads_in_the_environment_are_refused(command, run, threads, sentence):
    environment = Run(run).environment | {"threads": threads}
    (run / "environment.json").write_text(json.dumps(environment))
    before = contents(run)
    outcome = command(RESUME, "--output", run)
    assert outcome.status == 1
    assert sentence in the_sentence(outcome)
    assert contents(run) == before


@pytest.fixture
def raise_in_step(monkeypatch):
    """A function that makes one step of the next trainings raise signals."""
    training_step = Classify.training_step

    def plant(step, *numbers):
        steps = iter(range(1, 10_000))

        def interrupted(self, batch, share):
            if next(steps) == step:
                for number in numbers:
                    signal.raise_signal(number)
            return training_step(self, batch, share)

        monkeypatch.setattr(Classify, "training_step", interrupted)

    return plant


def test_signals_stop_a_run_and_resume_ends_as_if_there_was_none(
    command, start, tmp_path, raise_in_step
):
    command(start, "--output uninterrupted")
    raise_in_step(2, signal.SIGINT, signal.SIGINT)  # the second one ends at once
    outcome = command(start, "--output", Path("out of order"))
    assert outcome.status == 130
    assert "the state is saved" not in outcome.err
    assert not (tmp_path / "out of order" / "checkpoints" / "last.safetensors").exists()
    for step, count, number in ((4, 4, signal.SIGINT), (5, 1, signal.SIGTERM)):
        raise_in_step(count, number)
        outcome = command(RESUME, "--output", Path("out of order"))
        assert outcome.status == 128 + number
        assert outcome.out == ""
        assert f"stopped after step {step} of 6; the state is saved" in outcome.err
        words = "torchcaps train capsnet --output 'out of order' --resume"
        assert f"continue with: {words}" in outcome.err
        assert signal.getsignal(number) == signal.SIG_IGN  # another one changes nothing
    assert command(RESUME, "--output", Path("out of order")).status == 0
    assert contents(tmp_path / "out of order") == contents(tmp_path / "uninterrupted")
    assert leftovers(tmp_path / "out of order") == []


def test_an_option_that_the_model_does_not_take_is_2_and_leaves_nothing(command, start, tmp_path):
    outcome = command(start, "--option itertions=2")
    assert_fails(
        outcome, 2, "--option: capsnet takes no channels=8, primary_types=2, itertions=2 ("
    )
    assert list(tmp_path.iterdir()) == []


def test_folds_print_means_and_deviations(command, start, tmp_path):
    outcome = succeed(command(start, "--folds 3 --epochs 1"))
    lines = outcome.out.splitlines()
    assert lines[0].split() == ["figure", "mean", "±", "std", "over", "folds", "lowest", "highest"]
    assert lines[1].startswith("accuracy") and "±" in lines[1]
    assert lines[-1] == "3 folds of 48 images in runs/capsnet-bars"
    assert "fold 3 of 3" in outcome.err
    folder = tmp_path / "runs" / "capsnet-bars"
    for fold in ("fold-1", "fold-2", "fold-3"):
        assert (folder / fold / "evaluation.json").exists()
    repeat = command("train capsnet --folds 3 --output", folder, "--resume --json")
    assert repeat.document["mean"] == json.loads((folder / "folds.json").read_text())["mean"]
    assert "epoch" not in repeat.err
    refused = command(start, "--folds 3 --output", folder)
    assert refused.status == 1
    assert "there is a run or a cross-validation here already" in the_sentence(refused)


def test_stopped_folds_are_continued_by_the_command_that_is_printed(command, start, monkeypatch):
    classify_step = Classify.training_step

    def stop_once(task, *arguments):
        monkeypatch.setattr(Classify, "training_step", classify_step)
        os.kill(os.getpid(), signal.SIGINT)
        return classify_step(task, *arguments)

    monkeypatch.setattr(Classify, "training_step", stop_once)
    stopped = command(start, "--folds 3 --epochs 1 --output cv")
    assert stopped.status == 130
    [line] = [line for line in stopped.err.splitlines() if "continue with" in line]
    words = line.partition("continue with: torchcaps ")[2].split()
    assert words[-5:] == ["--output", "cv", "--resume", "--folds", "3"]
    assert command(words).status == 0


def test_a_control_is_trained_and_compared(command, start, tmp_path):
    start = ("train capsule_head --data", start[1:3], "--option types=2 --control")
    outcome = succeed(command(start))
    assert "control: linear_head, trained in the same way" in outcome.err
    lines = [line for line in outcome.out.splitlines() if line]
    assert {"capsule_head", "linear_head"} <= set(first_words(lines))
    assert " p = " in outcome.out  # the verdict
    control = Run(tmp_path / "runs" / "capsule_head-bars" / "control")
    assert control.config.model.name == "linear_head"
    assert control.is_finished
    heads = [tc.load(path).head for path in (control.path.parent, control.path)]
    counts = [sum(weight.numel() for weight in head.parameters()) for head in heads]
    assert counts[1] == pytest.approx(counts[0], rel=0.05)
    assert [f"{count:,}" in outcome.out for count in counts] == [True, True]

    outcome = command(start, "--resume --json")
    comparison = outcome.document["control"]["comparison"]
    accuracies = outcome.document["accuracy"], outcome.document["control"]["accuracy"]
    assert comparison["difference"] == pytest.approx(accuracies[0] - accuracies[1])

    shutil.rmtree(control.path)  # as if the training had stopped before the control began
    assert succeed(command(start, "--resume --json")).document == outcome.document


def test_a_model_without_a_control_is_refused(command, start):
    outcome = command(start, "--control")
    assert outcome.status == 2
    sentence = "torchcaps: error: --control: expected a model with a control, got capsnet"
    assert outcome.err.startswith(sentence)  # before the note on the reading


def test_without_a_recipe_there_is_a_list_of_them(command):
    experiments = command("reproduce --json").document
    assert column(experiments, "name") == list_recipes()
    for experiment in experiments:
        assert experiment["budgets"]["small"]
        assert experiment["rows"]
        assert experiment["published"]
    out = command("reproduce --list").out
    for name in list_recipes():
        assert name in out


def test_an_experiment_prints_its_table_and_writes_it(command, tmp_path, no_plots):
    recipe_of(tmp_path)
    words = "reproduce mine.toml --output out --row tiny"
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
    for words, complaint in (
        ("multimnis", "unknown recipe 'multimnis'; did you mean 'multimnist'"),
        ("mine.toml --row deep", "unknown row 'deep'"),
        ("mine.toml --budget hour", "unknown budget of mine 'hour'"),
        ("mine.toml --seeds 0", "--seeds: expected at least 1, got 0"),
    ):
        outcome = command("reproduce", words, "--output out")
        assert outcome.status == 2
        assert complaint in outcome.err
    assert not (tmp_path / "out").exists()


PAGE = Path(__file__).parents[2] / "docs" / "adding-a-router.md"


@pytest.fixture
def softened(tmp_path, restore):
    """The file of the page, imported; its name is forgotten afterwards."""
    restore(registry.ROUTERS)
    (tmp_path / "softened.py").write_text(python_block(PAGE), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("softened", tmp_path / "softened.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_router_is_trained_read_back_and_evaluated_by_name(softened, command, start, no_plots):
    options = "--option routing=softened --option temperature=1.5 --output run"
    succeed(command(start, options))
    router = tc.load("run").class_capsules.router
    assert isinstance(router, softened.SoftenedRouting)
    assert router.temperature == 1.5
    assert command("evaluate run").status == 0


NARROW = "--option channels=16 --option primary_types=4 --threads 1 --no-keep-memory --shift 0"
QUICK = f"--epochs 1 --batch-size 8 {NARROW}"


def test_names_of_classes_are_printed_and_written_safely(command, tmp_path):
    hostile = "red \x1b[31m"
    long_name = "x" * 250
    write_folder(tmp_path / "own", (hostile, long_name), count=6, size=(18, 18))
    picture((18, 18)).save(tmp_path / "own" / hostile / "plain", format="PNG")
    trained = command("train capsnet --data own", QUICK, "--output run")
    assert trained.status == 0, trained.err
    outcomes = [trained, command("evaluate run"), command("perturb run --steps 3")]
    outcomes.append(command("predict run", Path("own", hostile)))
    for outcome in outcomes:
        assert outcome.status == 0, outcome.err
        assert "\x1b" not in outcome.out + outcome.err
    assert len(outcomes[2].out.split()) == 2

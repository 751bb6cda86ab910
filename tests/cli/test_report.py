"""Commands that look at a trained model."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from PIL import Image

import torchcaps as tc
from checks import column
from torchcaps import viz
from torchcaps.reporting import html
from training.makers import edit_config, write_bars

from .conftest import assert_fails, first_words, succeed, the_sentence


def test_report_prints_the_page_it_wrote(command, run, monkeypatch):
    monkeypatch.setattr(html, "render_runs", lambda runs: "")
    outcome = command("report", run)
    assert (outcome.status, outcome.out) == (0, f"{run / 'report.html'}\n")
    outcome = command("report", run, "--output deep/page.html")
    assert (outcome.status, outcome.out) == (0, "deep/page.html\n")


def test_an_evaluation_is_a_table_or_one_document_equal_to_the_file(command, run, no_plots):
    lines = succeed(command("evaluate", run)).out.splitlines()
    assert first_words(lines[1:6]) == ["0", "1", "2", "mean", "all"]
    assert lines[-1].startswith("margin loss ")
    assert lines[-1].endswith(", 12 images")
    document = command("evaluate", run, "--json").document
    assert document["num_samples"] == sum(column(document["per_class"], "count")) == 12
    assert document == json.loads((run / "evaluation.json").read_text())


class TestDamagedRuns:
    @pytest.fixture(params=["evaluate", "predict", "reconstruct", "perturb"])
    def refused(self, command, request):
        """Run a command on a path; its output must be one sentence with these words."""

        def check(path, complaint):
            images = ["x.png"] * (request.param == "predict")
            outcome = command(request.param, path, images)
            assert outcome.status == 1
            assert complaint in the_sentence(outcome)

        return check

    def test_a_path_without_a_run_or_a_model_is_refused(self, refused, tmp_path):
        (tmp_path / "notes.txt").write_text("words")
        refused(tmp_path / "absent", "absent: no such run folder or model file")
        refused(tmp_path, "there is no trained model here")
        refused(tmp_path / "notes.txt", "is no readable checkpoint")

    def test_a_truncated_model_and_the_state_of_a_training_are_refused(self, refused, run):
        refused(run / "checkpoints" / "last.safetensors", "holds the state of a training")
        intact = (run / "model.safetensors").read_bytes()
        (run / "model.safetensors").write_bytes(intact[: len(intact) // 2])
        refused(run, "is no readable checkpoint")


@pytest.mark.usefixtures("no_plots")
def test_a_model_of_single_digits_is_measured_on_overlapping_ones(command, tmp_path):
    words = "--data digits --per-class 4 --holdout 10 --epochs 1 --output run"
    option = "--option match=matrix_caps_small"
    assert command("train cnn_matched", words, option).status == 0
    outcome = succeed(command("evaluate run --data multi-digits --json"))
    assert outcome.document.keys() >= {"error", "per_digit"}
    assert (tmp_path / "run" / "evaluations" / "multi-digits-test" / "evaluation.json").exists()


@pytest.fixture
def runs(run, tmp_path):
    """Copies of a run in the current folder, of two methods and two seeds: a-0, a-1, b-0, b-1."""
    for method in "ab":
        for seed in (0, 1):
            copy = shutil.copytree(run, tmp_path / f"{method}-{seed}")
            edit_config(copy, seed=seed)
    return tmp_path


@pytest.mark.usefixtures("runs")
class TestCompare:
    def test_two_methods_over_seeds_and_images(self, command):
        outcome = command("compare a-0 a-1 --with b-1 b-0 --margin 0.2")
        assert outcome.status == 0, outcome.err
        heading, first, second, _, verdict = outcome.out.splitlines()
        assert heading.split() == ["method", "accuracy", "runs"]
        assert (first.split()[0], second.split()[0]) == ("first", "second")
        assert "±" in first
        assert verdict.startswith(
            "These runs and images do not tell the two methods apart, nor show"
        )
        assert "within 20 points" in verdict

    def test_one_run_each_is_a_comparison_of_two_models(self, command):
        outcome = command("compare a-0 --with b-0 --json")
        assert outcome.status == 0, outcome.err
        document = outcome.document
        assert document["only_first"] == document["only_second"] == 0
        assert document["outcome"] == "undecided"
        assert "the same answers, right or wrong, on all" in document["verdict"]
        expected = tc.compare("a-0", "b-0")
        error = max(1 - expected.second, 1 / expected.num_samples)
        assert document["margin"] == expected.margin == pytest.approx(0.1 * error)

    def test_runs_of_other_seeds_are_no_pairs(self, command, runs):
        edit_config(runs / "b-1", seed=7)
        outcome = command("compare a-0 a-1 --with b-0 b-1 --paired")
        sentence = "paired: expected runs of the same seeds of both methods, got [0, 1] and [0, 7]"
        assert_fails(outcome, 1, sentence)

    def test_runs_on_other_images_are_refused(self, command, runs, tmp_path):
        bars = write_bars(tmp_path / "other.npz", seed=5)
        edit_config(runs / "b-0", data=str(bars))
        assert_fails(
            command("compare a-0 --with b-0"),
            1,
            "b-0: was not tested on the same images as a-0",
        )


def test_a_diagnosis_begins_with_its_verdict(command, trained):
    words = ("diagnose", trained, "--images 8 --threads 1 --baseline", trained)
    outcome = command(words)
    assert outcome.status == 0, outcome.err
    lines = outcome.out.splitlines()
    document = command("diagnose", trained, "--images 8 --json").document
    assert lines[0] == document["verdict"]
    assert lines[0].startswith("8 images do not show whether routing helps: ")
    assert max(map(len, lines)) <= 80
    marks = {line[0] for line in lines[3:] if line[1:3] == "  " and line[3] != " "}
    assert marks <= set("✓✗?")
    assert len(document["checks"]) == 10
    assert "ablation: " not in outcome.out
    assert "ablation: These images" in command(words, "--verbose").out


def test_an_animation_has_pictures_of_each_iteration(command, run, tmp_path):
    outcome = command("animate", run, "--output votes.gif")
    assert (outcome.status, outcome.out) == (0, "votes.gif\n")
    with Image.open(tmp_path / "votes.gif") as film:
        assert film.format == "GIF"
        assert film.n_frames == 3 * (1 + 2 * 8)  # classes x (start + 2 passages)


def test_reconstruct_prints_the_picture_it_wrote(command, run, tmp_path):
    outcome = command("reconstruct", run, "--per-class 1")
    assert (outcome.status, outcome.out) == (0, f"{run / 'plots' / 'reconstructions.png'}\n")
    outcome = command(
        "reconstruct", run, "--images", run / "plots" / "reconstructions.png", "--output own.png"
    )
    assert (outcome.status, outcome.out) == (0, "own.png\n")
    with Image.open(tmp_path / "own.png") as image:
        assert image.format == "PNG"


def test_perturb_prints_the_grids_it_wrote(command, run, tmp_path):
    outcome = succeed(command("perturb", run, "--steps 3 --output grids"))
    names = ["perturb_0.png", "perturb_1.png", "perturb_2.png"]
    assert sorted(os.listdir(tmp_path / "grids")) == names
    assert outcome.out.splitlines() == list(map("grids/{}".format, names))


def test_without_a_run_a_network_of_the_package_draws_into_this_folder(
    command, tmp_path, monkeypatch
):
    monkeypatch.setattr(viz, "perturbations", lambda *_, **__: viz.canvas.new_figure(1, 1))
    outcome = succeed(command("perturb --steps 3"))
    assert outcome.out.splitlines() == list(map("plots/perturb_{}.png".format, range(10)))
    outcome = command("reconstruct --per-class 1")
    assert (outcome.status, outcome.out) == (0, "plots/reconstructions.png\n")
    assert (tmp_path / "plots" / "reconstructions.png").exists()

from __future__ import annotations

import re
import shutil

import pytest

import torchcaps as tc
from training.makers import edit_config, write_bars

from .conftest import assert_fails, the_sentence


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
        outcome = command("compare", "a-0", "a-1", "--with", "b-1", "b-0", "--margin", "0.2")
        assert (outcome.status, outcome.err) == (0, "")
        heading, first, second, _, verdict = outcome.out.splitlines()
        assert heading.split() == ["method", "accuracy", "runs"]
        assert (first.split()[0], second.split()[0]) == ("first", "second")
        assert "±" in first
        assert verdict.startswith(
            "These runs and images do not tell the two methods apart, nor show"
        )
        assert "within 20 points" in verdict

    def test_one_run_each_is_a_comparison_of_two_models(self, command):
        outcome = command("compare", "a-0", "--with", "b-0", "--json")
        assert (outcome.status, outcome.err) == (0, "")
        document = outcome.document
        assert document["only_first"] == document["only_second"] == 0
        assert document["outcome"] == "undecided"
        assert "the same answers, right or wrong, on all" in document["verdict"]
        expected = tc.compare("a-0", "b-0")
        error = max(1 - expected.second, 1 / expected.num_samples)
        assert document["margin"] == expected.margin == pytest.approx(0.1 * error)

    def test_runs_of_other_seeds_are_no_pairs(self, command, runs):
        edit_config(runs / "b-1", seed=7)
        outcome = command("compare", "a-0", "a-1", "--with", "b-0", "b-1", "--paired")
        assert outcome.status == 1
        sentence = "paired: expected runs of the same seeds of both methods, got [0, 1] and [0, 7]"
        assert the_sentence(outcome) == sentence

    def test_runs_on_other_images_are_refused(self, command, runs, tmp_path):
        bars = write_bars(tmp_path / "other.npz", seed=5)
        edit_config(runs / "b-0", data=str(bars))
        assert_fails(
            command("compare", "a-0", "--with", "b-0"),
            1,
            "b-0: was not tested on the same images as a-0",
        )

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (("--with", "a-0"), "runs: expected one run folder or more, got none"),
            (("a-0",), "runs: expected two run folders, or --with, got 1"),
            (
                ("a-0", "a-1", "--with", "b-0"),
                "--with: expected one run of each method or several of each, got 1 and 2",
            ),
            (
                ("a-0", "--with", "./a-0"),
                "runs: expected different run folders, got one of them twice",
            ),
            (
                ("a-0", "--with", "b-0", "--margin", "0"),
                "margin: expected a share such as 10%, or a difference in accuracy such as 0.01, "
                "got 0",
            ),
            (
                ("a-0", "b-0", "--adjust", "0.1", "1.5"),
                "--adjust: expected between 0 and 1, got 1.5",
            ),
            (
                ("a-0", "--with", "b-0", "--paired"),
                "--paired: expected several runs of each method, got one",
            ),
        ],
    )
    def test_a_wrong_command_line_is_2(self, command, words, sentence):
        assert_fails(command("compare", words), 2, sentence)


def test_a_diagnosis_is_a_sentence_for_each_measure(command, trained):
    outcome = command("diagnose", trained, "--images", 8, "--baseline", trained, "--threads", 1)
    assert (outcome.status, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    verdicts = command("diagnose", trained, "--images", 8, "--json").document["verdicts"]
    assert f"ablation: {verdicts['ablation']}" in lines
    [baseline] = filter(re.compile("baseline: ").match, lines)
    assert "parameters against" in baseline
    outcome = command("diagnose", trained, "--images", 1)
    assert (outcome.status, the_sentence(outcome)) == (2, "--images: expected at least 2, got 1")

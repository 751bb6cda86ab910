from __future__ import annotations

import json

import pytest

from checks import column

from .conftest import first_words, succeed, the_sentence

FIGURES = {
    "accuracy",
    "error",
    "per_class",
    "num_samples",
    "confusion_matrix",
    "loss",
    "calibration_error",
}


@pytest.mark.usefixtures("no_plots")
class TestEvaluate:
    def test_the_table_goes_to_stdout(self, command, run):
        outcome = succeed(command("evaluate", run))
        lines = outcome.out.splitlines()
        assert first_words(lines[1:6]) == ["0", "1", "2", "mean", "all"]
        assert lines[-1].startswith("margin loss ")
        assert lines[-1].endswith(", 12 images")

    def test_json_is_one_document_equal_to_the_file(self, command, run):
        outcome = command("evaluate", run, "--json")
        document = outcome.document
        assert document.keys() >= FIGURES
        assert document["accuracy"] + document["error"] == pytest.approx(1)
        assert 0 <= document["accuracy"] <= 1
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


@pytest.mark.parametrize(
    ("name", "content"),
    [("evaluate", "{"), ("evaluate", '{"data": 3}'), ("reconstruct", "[]")],
)
def test_a_damaged_configuration_is_named(command, run, name, content):
    (run / "config.json").write_text(content)
    outcome = command(name, run)
    assert outcome.status == 1
    assert the_sentence(outcome).startswith(
        f"{run / 'config.json'}: is no readable configuration ("
    )


@pytest.mark.usefixtures("no_plots")
def test_a_model_of_single_digits_is_measured_on_overlapping_ones(command, tmp_path):
    words = "--data digits --per-class 4 --holdout 10 --epochs 1 --output run"
    option = ("--option", "match=matrix_caps_small")
    assert command("train", "cnn_matched", words.split(), option).status == 0
    outcome = succeed(command("evaluate", "run", "--data", "multi-digits", "--json"))
    assert outcome.document.keys() >= {"error", "per_digit"}
    assert (tmp_path / "run" / "evaluations" / "multi-digits-test" / "evaluation.json").exists()

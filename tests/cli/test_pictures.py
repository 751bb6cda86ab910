from __future__ import annotations

import os

import pytest
from PIL import Image

from torchcaps import viz

from .conftest import assert_fails, succeed, the_sentence


def test_reconstruct_prints_the_picture_it_wrote(command, run, tmp_path):
    outcome = command("reconstruct", run, "--per-class", 1)
    assert (outcome.status, outcome.out) == (0, f"{run / 'plots' / 'reconstructions.png'}\n")
    outcome = command(
        "reconstruct", run, "--images", run / "plots" / "reconstructions.png", "--output", "own.png"
    )
    assert (outcome.status, outcome.out) == (0, "own.png\n")
    with Image.open(tmp_path / "own.png") as image:
        assert image.format == "PNG"


def test_perturb_prints_the_grids_it_wrote(command, run, tmp_path):
    outcome = succeed(command("perturb", run, "--steps", 3, "--output", "grids"))
    names = ["perturb_0.png", "perturb_1.png", "perturb_2.png"]
    assert sorted(os.listdir(tmp_path / "grids")) == names
    assert outcome.out.splitlines() == list(map("grids/{}".format, names))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("reconstruct", "--per-class", 0), "--per-class: expected at least 1, got 0"),
        (("perturb", "--steps", 1), "--steps: expected at least 2, got 1"),
        (("perturb", "--span", "nan"), "--span: expected at least 0, got nan"),
    ],
)
def test_a_wrong_flag_is_2(command, run, words, sentence):
    assert_fails(command(words[0], run, words[1:]), 2, sentence)


def test_a_model_without_decoder_trains_and_evaluates(command, start, no_plots):
    succeed(command(start, "--option", "decoder=false", "--output", "blind"))
    refused = command(
        start, "--option", "decoder=false", "--reconstruction", 0.1, "--output", "refused"
    )
    sentence = "reconstruction: expected 0 for a model without a decoder, got 0.1"
    assert the_sentence(refused) == sentence
    assert command("evaluate", "blind", "--json").status == 0


def test_without_a_run_a_network_of_the_package_draws_into_this_folder(
    command, tmp_path, monkeypatch
):
    monkeypatch.setattr(viz, "perturbations", lambda *_, **__: viz.canvas.new_figure(1, 1))
    outcome = succeed(command("perturb", "--steps", 3))
    assert outcome.out.splitlines() == list(map("plots/perturb_{}.png".format, range(10)))
    outcome = command("reconstruct", "--per-class", 1)
    assert (outcome.status, outcome.out) == (0, "plots/reconstructions.png\n")
    assert (tmp_path / "plots" / "reconstructions.png").exists()

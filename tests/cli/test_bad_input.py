from __future__ import annotations

import os

import pytest
from PIL import Image

from data.makers import write_folder
from training.makers import contents

from .conftest import assert_fails, succeed, the_sentence

pytestmark = pytest.mark.usefixtures("no_plots")


@pytest.fixture
def photos(tmp_path):
    """A folder of two class folders."""
    return write_folder(tmp_path / "photos", count=10, size=(20, 20), color=False)


@pytest.fixture
def refused(command, start, tmp_path):
    """Train on this: one sentence that names the fault, status 1, and no folder."""

    def check(data, *complaints):
        before = sorted(tmp_path.iterdir())
        outcome = command(start, "--data", data, "--holdout 0.2")
        assert outcome.status == 1
        sentence = the_sentence(outcome)
        for complaint in complaints:
            assert str(complaint) in sentence
        assert sorted(tmp_path.iterdir()) == before

    return check


@pytest.mark.parametrize(
    "damage",
    [lambda _: b"no", lambda content: content[:90], lambda content: content[:40] + bytes(60)],
)
def test_a_corrupt_png_in_either_split(refused, photos, damage):
    for file in sorted((photos / "cat").iterdir())[::3]:
        intact = file.read_bytes()
        file.write_bytes(damage(intact))
        refused(photos, file)
        file.write_bytes(intact)


def test_images_of_16_pixels_and_the_next_try_with_larger_ones(refused, command, start, photos):
    for file in photos.glob("*/*.png"):
        Image.open(file).resize((16, 16)).save(file)
    refused(photos, "at least 17x17 pixels, got 16x16")
    outcome = succeed(command(start, "--data", photos, "--holdout 0.2 --img-size 20 --epochs 1"))
    assert outcome.out.endswith("run folder: runs/capsnet-photos\n")


def test_a_path_that_is_no_data_set(refused, tmp_path):
    (tmp_path / "notes.txt").write_text("words")
    refused(tmp_path / "notes.txt", tmp_path / "notes.txt", "not a data set")


@pytest.mark.parametrize("place", ["file/run", "file"])
def test_an_output_that_cannot_be_made(command, start, tmp_path, place):
    (tmp_path / "file").write_text("mine")
    sentence = f"{place}: the folder cannot be made ("
    assert_fails(command(start, "--output", place), 1, sentence)
    assert (tmp_path / "file").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


def test_outputs_of_the_other_commands_that_cannot_be_made(command, run, tmp_path):
    (tmp_path / "file").write_text("mine")
    before = contents(run)
    for words in (
        "evaluate run --output file/there",
        "evaluate run --output file",
        "reconstruct run --output file/there.png",
        "reconstruct run --output run",
        "reconstruct run --output there.xyz",
        "perturb run --output file",
    ):
        outcome = command(words)
        assert outcome.status == 1, words
        assert the_sentence(outcome)
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["file", "run"]
    assert contents(run) == before


def test_an_empty_word_is_no_place_to_write_to(command, run, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    for name, words in (
        ("--output", "evaluate run --output "),
        ("--output", "perturb run --output="),
        ("--seed", "perturb run --seed "),
        ("[RUN] IMAGE...", "predict run "),
    ):
        outcome = command(words)
        assert outcome.status == 2, words
        assert the_sentence(outcome).startswith(f"{name}: expected a value, got an empty word")
    assert sorted(tmp_path.rglob("*")) == before

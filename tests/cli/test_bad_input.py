from __future__ import annotations

import io
import os

import numpy as np
import pytest
from PIL import Image

from training.makers import contents

from .conftest import succeed, the_sentence

pytestmark = pytest.mark.usefixtures("no_plots")


def photo(seed=0):
    """The bytes of a picture of noise."""
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 20), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def photos(tmp_path):
    """A folder of two class folders."""
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(10):
            (tmp_path / "photos" / name / f"{number}.png").write_bytes(photo(seed=number))
    return tmp_path / "photos"


@pytest.fixture
def refused(command, start, tmp_path):
    """Train on this: one sentence that names the fault, status 1, and no folder."""

    def check(data, *complaints):
        before = sorted(tmp_path.iterdir())
        outcome = command(start, "--data", data, "--holdout", 0.2)
        assert outcome.status == 1
        sentence = the_sentence(outcome)
        for complaint in complaints:
            assert str(complaint) in sentence
        assert sorted(tmp_path.iterdir()) == before

    return check


@pytest.mark.parametrize("content", [b"no", photo()[:90], photo()[:40] + bytes(60)])
def test_a_corrupt_png_in_either_split(refused, photos, content):
    for file in sorted((photos / "cat").iterdir())[::3]:
        intact = file.read_bytes()
        file.write_bytes(content)
        refused(photos, file)
        file.write_bytes(intact)


def test_images_of_16_pixels_and_the_next_try_with_larger_ones(refused, command, start, photos):
    for file in photos.glob("*/*.png"):
        Image.open(file).resize((16, 16)).save(file)
    refused(photos, "at least 17x17 pixels, got 16x16")
    outcome = succeed(
        command(start, "--data", photos, "--holdout", 0.2, "--img-size", 20, "--epochs", 1)
    )
    assert outcome.out.endswith("run folder: runs/capsnet-photos\n")


def test_a_path_that_is_no_data_set(refused, tmp_path):
    (tmp_path / "notes.txt").write_text("words")
    refused(tmp_path / "notes.txt", tmp_path / "notes.txt", "not a data set")


@pytest.mark.parametrize("place", ["file/run", "file"])
def test_an_output_that_cannot_be_made(command, start, tmp_path, place):
    (tmp_path / "file").write_text("mine")
    outcome = command(start, "--output", place)
    assert outcome.status == 1
    assert the_sentence(outcome).startswith(f"{place}: the folder cannot be made (")
    assert (tmp_path / "file").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 1


def test_outputs_of_the_other_commands_that_cannot_be_made(command, run, tmp_path):
    (tmp_path / "file").write_text("mine")
    before = contents(run)
    for words in (
        ("evaluate", run, "--output", "file/there"),
        ("evaluate", run, "--output", "file"),
        ("reconstruct", run, "--output", "file/there.png"),
        ("reconstruct", run, "--output", "run"),
        ("reconstruct", run, "--output", "there.xyz"),
        ("perturb", run, "--output", "file"),
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
        ("--output", ("evaluate", run, "--output", "")),
        ("--output", ("perturb", run, "--output=")),
        ("--seed", ("perturb", run, "--seed", "")),
        ("[RUN] IMAGE...", ("predict", run, "")),
    ):
        outcome = command(words)
        assert outcome.status == 2, words
        assert the_sentence(outcome).startswith(f"{name}: expected a value, got an empty word")
    assert sorted(tmp_path.rglob("*")) == before

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
from PIL import Image

from torchcaps.training.checkpoint import load_tensors
from training.makers import contents

from .conftest import the_sentence

pytestmark = pytest.mark.usefixtures("no_plots")


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def idx_folder(tmp_path):
    """A folder of IDX files as MNIST's, of bright bars."""
    folder = tmp_path / "idx"
    folder.mkdir()
    for stem, count in (("train", 40), ("t10k", 10)):
        labels = (np.arange(count) % 2).astype(np.uint8)
        images = np.zeros((count, 20, 20), dtype=np.uint8)
        images[labels == 1, :, 10:] = 255
        (folder / f"{stem}-images-idx3-ubyte").write_bytes(idx(images))
        (folder / f"{stem}-labels-idx1-ubyte").write_bytes(idx(labels))
    return folder


@pytest.fixture
def photos(tmp_path):
    """A folder of two class folders."""
    random = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for k in range(10):
            pixels = random.integers(0, 256, (20, 20), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{k}.png")
    return tmp_path / "photos"


@pytest.fixture
def refused(command, start, tmp_path):
    """Train on this; what came must be one sentence that names the fault, status 1, and no folder."""

    def check(data, *complaints):
        before = sorted(tmp_path.iterdir())
        outcome = command(*start, "--data", data, "--holdout", 0.2)
        assert outcome.status == 1
        sentence = the_sentence(outcome)
        for complaint in complaints:
            assert str(complaint) in sentence
        assert sorted(tmp_path.iterdir()) == before

    return check


@pytest.fixture
def trains(command, start):
    """Train on this; it must work."""

    def check(data):
        outcome = command(*start, "--data", data, "--holdout", 0.2, "--epochs", 1)
        assert outcome.status == 0, outcome.err

    return check


@pytest.mark.parametrize(
    "name", ["train-images-idx3-ubyte", "t10k-images-idx3-ubyte", "train-labels-idx1-ubyte"]
)
def test_truncated_idx(refused, trains, idx_folder, name):
    trains(idx_folder)
    whole = (idx_folder / name).read_bytes()
    (idx_folder / name).write_bytes(whole[:-7])
    refused(idx_folder, idx_folder / name, "truncated")


def test_truncated_gzip(refused, idx_folder):
    path = idx_folder / "train-images-idx3-ubyte"
    packed = gzip.compress(path.read_bytes())
    path.unlink()
    path.with_name(path.name + ".gz").write_bytes(packed[: len(packed) // 2])
    refused(idx_folder, f"{path}.gz", "truncated gzip file")


def test_wrong_magic(refused, idx_folder):
    path = idx_folder / "train-images-idx3-ubyte"
    path.write_bytes(b"\x00\x00\x0d\x03" + path.read_bytes()[4:])
    refused(idx_folder, path, "wrong magic number 0x00000d03")


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b[:40] + bytes(60) + b[100:], lambda b: b"no"]
)
def test_a_corrupt_png_in_either_split(refused, trains, photos, damage):
    trains(photos)
    for file in sorted((photos / "cat").iterdir()):
        whole = file.read_bytes()
        file.write_bytes(damage(whole))
        refused(photos, file)
        file.write_bytes(whole)


def test_one_class(refused, photos):
    for file in (photos / "dog").iterdir():
        file.unlink()
    refused(photos, photos / "dog", "class 'dog' is empty")
    (photos / "dog").rmdir()
    refused(photos, "expected at least two classes", "cat")


def test_classes_of_one_image_each_leave_nothing_to_validate_with(refused, photos):
    for file in photos.glob("*/*.png"):
        if file.stem != "0":
            file.unlink()
    refused(photos, "no class has two images")


def test_a_training_split_of_one_image_each_leaves_nothing_to_validate_with(refused, tmp_path):
    images, labels = np.zeros((2, 20, 20), dtype=np.uint8), np.arange(2)
    np.savez(tmp_path / "few.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    refused(tmp_path / "few.npz", "holdout: 0.2 of 2 images leaves nothing on one side")


def test_one_class_of_one_image_trains(trains, photos):
    for file in (photos / "cat").glob("*.png"):
        if file.stem != "0":
            file.unlink()
    trains(photos)


def test_images_of_16_pixels_and_the_next_try_with_larger_ones(refused, command, start, photos):
    for file in photos.glob("*/*.png"):
        Image.open(file).resize((16, 16)).save(file)
    refused(photos, "at least 17x17 pixels, got 16x16")
    outcome = command(*start, "--data", photos, "--holdout", 0.2, "--img-size", 20, "--epochs", 1)
    assert outcome.status == 0
    assert outcome.out.endswith("run folder: runs/capsnet-photos\n")


def test_images_of_two_sizes(refused, photos):
    Image.new("L", (25, 25)).save(photos / "cat" / "3.png")
    refused(photos, "images differ in size", "--img-size")


def test_cmyk_and_16_bit_images_work(trains, photos):
    for name in ("cat", "dog"):
        Image.new("CMYK", (20, 20), (10, 20, 30, 40)).save(photos / name / "cmyk.jpg")
        Image.fromarray(np.full((20, 20), 40_000, dtype=np.uint16)).save(photos / name / "deep.png")
    trains(photos)


@pytest.mark.parametrize(
    ("pixel", "complaint"),
    [(np.nan, "NaN"), (np.inf, "infinite"), (7.0, "expected float pixels in [0, 1]")],
)
def test_pixels_that_are_no_gray_values_in_an_npz(refused, tmp_path, pixel, complaint):
    images, labels = (
        np.random.default_rng(0).random((20, 20, 20), dtype=np.float32),
        np.arange(20) % 2,
    )
    for place in (0, 19):
        bad = images.copy()
        bad[place, 3, 3] = pixel
        np.savez(tmp_path / "bad.npz", images=bad, labels=labels)
        refused(tmp_path / "bad.npz", tmp_path / "bad.npz", complaint)


def test_an_npz_that_is_none_or_lacks_its_test_images(refused, tmp_path):
    (tmp_path / "bad.npz").write_bytes(b"no zip")
    refused(tmp_path / "bad.npz", tmp_path / "bad.npz", "cannot be read")
    images, labels = np.zeros((20, 20, 20), dtype=np.uint8), np.arange(20) % 2
    np.savez(tmp_path / "half.npz", x_train=images, y_train=labels)
    refused(tmp_path / "half.npz", tmp_path / "half.npz", "'test' split")


def test_a_path_that_is_no_data_set(refused, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("words")
    refused(tmp_path / "empty", tmp_path / "empty", "no class folders")
    refused(tmp_path / "notes.txt", tmp_path / "notes.txt", "not a data set")
    refused(tmp_path / "absent", tmp_path / "absent", "no such file or folder")


def test_a_loss_that_diverges_at_once_leaves_no_folder(refused, command, start, tmp_path):
    outcome = command(*start, "--lr", "1e30", "--schedule", "constant", "--output", "out")
    assert outcome.status == 1
    assert "became" in the_sentence(outcome)
    assert "start again with a lower lr" in outcome.err
    assert list(tmp_path.iterdir()) == []


def test_a_loss_that_diverges_later_keeps_the_last_finite_state(command, start, tmp_path):
    outcome = command(
        *start, "--lr", "1e25", "--schedule", "constant", "--output", "out", "--checkpoint-every", 1
    )
    assert outcome.status == 1
    kept = tmp_path / "out" / "checkpoints" / "last.safetensors"
    assert "the last good state is kept in out/checkpoints/last.safetensors" in the_sentence(
        outcome
    )
    before = kept.read_bytes()
    assert all(tensor.isfinite().all() for tensor in load_tensors(kept)[0].values())
    assert (
        command("train", "capsnet", "--output", "out", "--resume", "--keep-memory", "no") == outcome
    )
    assert kept.read_bytes() == before


@pytest.mark.parametrize("place", ["file/run", "file"])
def test_an_output_that_cannot_be_made(command, start, tmp_path, place):
    (tmp_path / "file").write_text("mine")
    outcome = command(*start, "--output", place)
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
        outcome = command(*words)
        assert outcome.status == 1, words
        assert len(outcome.err.splitlines()) == 1
        assert outcome.err.startswith("torchcaps: error: ")
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "run"]
    assert contents(run) == before


def test_an_empty_word_is_no_place_to_write_to(command, run, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    for words in (
        ("evaluate", run, "--output", ""),
        ("reconstruct", run, "--output", ""),
        ("perturb", run, "--output="),
        ("report", run, "--output", ""),
        ("reproduce", "capsnet-digits", "--output", ""),
        ("bench", "--output", ""),
        ("bench", "--plots", ""),
    ):
        outcome = command(*words)
        assert outcome.status == 2, words
        flag = next(word for word in words if "--" in str(word)).rstrip("=")
        assert the_sentence(outcome) == f"{flag}: expected a value, got an empty word"
    assert (
        the_sentence(command("predict", run, ""))
        == "command line: expected a value, got an empty word"
    )
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("content", ["{", "[]", '{"epochs": "two"}', "[" * 100_000])
def test_resuming_a_run_with_a_damaged_configuration(command, run, content):
    (run / "config.json").write_text(content)
    before = contents(run)
    outcome = command("train", "capsnet", "--output", run, "--resume")
    assert outcome.status == 1
    assert the_sentence(outcome).startswith(
        f"{run / 'config.json'}: is no readable configuration ("
    )
    assert contents(run) == before

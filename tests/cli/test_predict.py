"""`torchcaps predict`: what it takes, and what it prints."""

from __future__ import annotations

import json
import tarfile

import pytest
from PIL import Image

from checks import column
from torchcaps.data import load_dataset
from torchcaps.training.files import load_tensors, save_tensors

from .conftest import assert_fails, the_sentence

NAMES = ["1.png", "2.png", "10.png", "more/one.jpg"]


@pytest.fixture
def photos(bars, tmp_path):
    """Four bars as pictures of other sizes and colors, in a folder and one below it."""
    images = load_dataset(bars, "test").images
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for index, name in enumerate(NAMES):
        picture = Image.fromarray(images[index, 0].numpy())
        if index % 2:
            picture = picture.convert("RGB").resize((60, 54))
        picture.save(folder / name)
    return folder


class TestInputs:
    def test_a_folder_is_read_in_natural_order_at_every_depth(self, command, run, photos):
        rows = command("predict", run, photos, "--json").document
        assert column(rows, "path") == [str(photos / name) for name in NAMES]

    def test_an_archive_gives_the_predictions_of_its_files(self, command, run, photos, tmp_path):
        with tarfile.open(tmp_path / "photos.tar.gz", "w:gz") as archive:
            for name in NAMES:
                archive.add(photos / name, name)
        folder = command("predict", run, photos, "--json").document
        rows = command("predict", run, "photos.tar.gz --json").document
        assert column(rows, "path") == [f"photos.tar.gz:{name}" for name in NAMES]
        assert column(rows, "activations") == column(folder, "activations")

    def test_a_model_file_predicts_as_its_run(self, command, run, photos):
        outcome = command("predict", run / "model.safetensors", photos)
        assert outcome.out == command("predict", run, photos).out

    def test_pictures_alone_go_to_a_network_of_the_package(self, command, tmp_path):
        digits = load_dataset("digits", "test")
        files = [f"drawn/{index}.png" for index in range(4)]
        (tmp_path / "drawn").mkdir()
        for file, pixels in zip(files, digits.images[:4, 0].numpy(), strict=True):
            Image.fromarray(pixels).save(tmp_path / file)
        expected = list(map(str, digits.labels[:4].tolist()))
        for words in (["drawn"], ["drawn/*.png"], files):
            rows = command("predict", words, "--json").document
            assert column(rows, "label") == expected
        capital = (tmp_path / files[0]).rename(tmp_path / "0.PNG")
        assert column(command("predict", capital, "--json").document, "label") == expected[:1]

    def test_nothing_to_predict_is_a_wrong_command_line(self, command, run):
        outcome = command("predict", run)
        assert (outcome.status, outcome.out) == (2, "")

    def test_a_first_word_that_is_neither_run_nor_image_is_refused(self, command):
        assert_fails(
            command("predict gone drawn/0.png"), 1, "gone: no such run folder or model file"
        )


class TestResults:
    def test_the_table_has_a_heading_and_a_line_for_each_image(self, command, run, photos):
        heading, line = command("predict", run, photos / "1.png").out.splitlines()
        heads = ["image", "class", "activation", "probability", "changes", "reason"]
        assert heading.split() == heads
        path, label, activation, probability = line.split()  # nothing was changed, or doubted
        assert path == str(photos / "1.png")
        assert label in ("0", "1", "2")
        assert 0 <= float(activation) <= 1
        assert 1 / 3 <= float(probability) <= 1

    def test_what_was_done_and_why_there_is_no_answer_is_said(self, command, tmp_path):
        digit = load_dataset("digits", "test").images[0, 0].numpy()
        page = Image.new("L", (90, 90), 240)
        page.save(tmp_path / "page.png")
        page.paste(Image.fromarray(255 - digit), (50, 10))
        page.save(tmp_path / "seven.png")
        words = "predict seven.png page.png"
        rows = command(words, "--json").document
        assert column(rows, "label") == ["7", "empty"]
        assert column(rows, "changes") == ["inverted, cropped and centered", ""]
        assert column(rows, "reason") == ["", "nothing stands out from its background"]
        assert "inverted" in command(words).out.splitlines()[1]

    def test_json_has_all_classes_longest_first(self, command, run, photos):
        rows = command("predict", run, photos, "--json").document
        for row in rows:
            lengths = list(row["activations"].values())
            assert set(row["activations"]) == {"0", "1", "2"}
            assert lengths == sorted(lengths, reverse=True)
            assert (row["label"], row["activation"]) == next(iter(row["activations"].items()))
            assert sum(row["probabilities"].values()) == pytest.approx(1)
            assert row["probability"] == row["probabilities"][row["label"]]
        lines = command("predict", run, photos, "--jsonl").out.splitlines()
        assert list(map(json.loads, lines)) == rows

    def test_a_run_without_a_calibration_has_no_probabilities(self, command, run, photos):
        tensors, description = load_tensors(run / "model.safetensors")
        del description["calibration"]
        save_tensors(run / "model.safetensors", tensors, description)
        outcome = command("predict", run, photos, "--csv")
        heading, *lines = outcome.out.splitlines()
        assert heading == "path,label,activation,probability,changes,reason"
        assert {line.split(",")[3] for line in lines} == {""}
        assert outcome.err == (
            f"{run}: is not calibrated, so there are activations, but no probabilities\n"
        )
        refused = command("predict", run, photos, "--unknown-below auto")
        assert refused.status == 1
        assert "auto needs a calibrated model" in refused.err

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            ("--csv --json", "--csv: expected one format of the predictions, got --json too"),
            (
                "--output-file a.txt",
                "a.txt: expected a file ending in .csv, .jsonl or .parquet",
            ),
            ("--parquet a.csv", "--parquet: expected a file ending in .parquet, got a.csv"),
        ],
    )
    def test_a_wrong_flag_is_one_sentence(self, command, run, photos, words, sentence):
        assert_fails(command("predict", run, photos, words), 2, sentence)


class TestDamagedFiles:
    def test_they_are_listed_and_the_others_are_predicted(self, command, run, photos):
        expected = command("predict", run, photos, "--json").document
        (photos / "3.png").write_bytes(b"no picture")
        photo_bytes = (photos / "10.png").read_bytes()
        (photos / "more" / "cut.png").write_bytes(photo_bytes[: len(photo_bytes) // 2])
        (photos / "gone.png").symlink_to(photos / "nowhere.png")
        outcome = command("predict", run, photos, "absent.png *.bmp --json")
        assert outcome.status == 1
        assert outcome.document == expected
        *lines, last = outcome.err.splitlines()
        assert last == "torchcaps: 5 inputs were skipped"
        damaged = [photos / "3.png", photos / "gone.png", photos / "more" / "cut.png"]
        for line, path in zip(lines, [*damaged, "absent.png", "*.bmp"], strict=True):
            assert line.startswith(f"torchcaps: error: {path}: ")

    def test_one_file_is_one_sentence(self, command, run, tmp_path):
        (tmp_path / "bad.png").write_bytes(b"no picture")
        for name in ("absent.png", "bad.png"):
            assert_fails(command("predict", run, tmp_path / name), 1, f"{tmp_path / name}: ")


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_file_has_the_lines_that_would_be_printed(command, run, photos, tmp_path, ending):
    words = ("predict", run, photos)
    file = tmp_path / "new" / f"rows.{ending}"
    if ending == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        assert command(words, "--parquet", file).status == 0
        printed = command(words, "--json").document
        rows = parquet.read_table(file).to_pylist()
        names = ["path", "label", "activation", "probability", "changes", "reason"]
        assert [*rows[0]] == names
        for name in rows[0]:
            assert column(rows, name) == column(printed, name)
    else:
        words = (words, "--top-k 2")
        assert command(words, "--output-file", file).status == 0
        assert file.read_text() == command(words, f"--{ending}").out
    assert the_sentence(command(words, "--output-file", file)).startswith(f"{file}: exists")


def test_an_engine_that_is_not_there(command, run, photos, monkeypatch):
    monkeypatch.setattr("torchcaps.errors.find_spec", lambda name: None)
    outcome = command("predict", run, photos, "--engine ray")
    assert outcome.status != 0
    assert "pip install 'torchcaps[ray]'" in the_sentence(outcome)
    assert "--engine" in the_sentence(command("predict", run, photos, "--address auto"))

"""Predictions, and files of them."""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import pickle
from itertools import count, islice

import numpy as np
import pytest
import torch
from PIL import Image

import torchcaps as tc
from checks import column
from torchcaps.data import Preprocess, load_dataset
from torchcaps.errors import ArgumentError, DataError, RunError
from torchcaps.reporting import prediction as row_files
from torchcaps.reporting.prediction import columns, open_row_file
from torchcaps.training.calibration import read_calibration


@pytest.fixture(scope="module")
def images(bars):
    return load_dataset(str(bars), "test")


@pytest.fixture(scope="module")
def folder(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for index, pixels in enumerate(images.images[:6, 0].numpy()):
        Image.fromarray(pixels).save(folder / f"{index}.png")
    return folder


@pytest.fixture(scope="module")
def rows(trained, folder):
    return tc.Predictor(trained, batch_size=2)(folder)


def assert_alike(rows, expected):
    assert column(rows, "label") == column(expected, "label")
    assert column(rows, "activation") == pytest.approx(column(expected, "activation"), abs=1e-5)


def test_every_kind_of_input_is_predicted_alike(trained, images, folder, rows):
    predictor = tc.Predictor(trained)
    pixels = images.images[:6]
    pictures = [Image.fromarray(image[0].numpy()) for image in pixels]
    for inputs in (
        pixels,
        pixels.numpy(),
        [pixels[:2], pixels[2:].numpy()],
        iter(pixels),
        pictures,
        [str(folder / "0.png"), folder / "1.png", *pictures[2:5], pixels[5].numpy()],
        str(folder),
        [f"{folder}/*.png"],
    ):
        assert_alike(predictor(inputs), rows)


def test_a_pickle_is_small_and_works_in_a_new_process(trained, folder, rows, monkeypatch):
    predictor = tc.Predictor(trained, batch_size=2)
    assert_alike(predictor(folder), rows)  # it is loaded
    assert len(pickle.dumps(predictor)) < 2000
    monkeypatch.chdir(trained.parent)
    relative = pickle.loads(pickle.dumps(tc.Predictor(trained.name)))
    monkeypatch.chdir(folder)  # a worker of an engine is somewhere else
    assert_alike(relative(folder), rows)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        [answers] = pool.map(predictor, [str(folder)])
    assert_alike(answers, rows)


def test_calls_do_not_depend_on_each_other(trained, images):
    predictor = tc.Predictor(trained)
    first = predictor(images.images[:3])
    predictor(images.images[3:])
    assert predictor(images.images[:3]) == first


def test_workers_give_the_same_predictions(trained, folder, rows):
    assert tc.Predictor(trained, batch_size=2, workers=2)(folder) == rows


def test_torchs_generator_is_left_alone(trained, folder):
    state = torch.get_rng_state()
    tc.Predictor(trained)(folder)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_endless_stream_is_read_batch_by_batch(trained, images, workers):
    num_read = 0

    def pictures():
        nonlocal num_read
        for index in count():
            num_read += 1
            yield images.images[index % 6].numpy()

    rows = tc.Predictor(trained, batch_size=3, workers=workers).stream(pictures())
    assert len(list(islice(rows, 10))) == 10
    rows.close()
    assert num_read <= 12 + 6 * workers  # each worker has two batches ahead


def test_a_damaged_input_is_raised_or_reported(trained, folder, rows, tmp_path):
    (tmp_path / "bad.png").write_bytes(b"no picture")
    inputs = [folder / "0.png", tmp_path / "bad.png", np.zeros(3), folder / "1.png"]
    predictor = tc.Predictor(trained, batch_size=3)
    with pytest.raises(DataError, match=r"bad\.png: not an image"):
        predictor(inputs)
    errors = []
    assert_alike(list(predictor.stream(inputs, errors.append)), rows[:2])
    assert len(errors) == 2
    assert str(errors[1]).startswith("image: expected images of 3 or 4 axes")


def test_probabilities_are_those_of_the_calibration(trained, images, rows):
    calibration = read_calibration(trained)
    for row in rows:
        activations = torch.tensor([[*row["activations"].values()]])
        [expected] = calibration.probabilities(activations).tolist()
        assert [*row["probabilities"].values()] == pytest.approx(expected)
        assert [*row["probabilities"]] == [*row["activations"]]
        assert row["probability"] == max(expected)
    [best] = tc.Predictor(trained, top_k=2)(images.images[0])
    assert [*best["probabilities"]] == [*best["activations"]] == [*rows[0]["activations"]][:2]
    assert best["probability"] == pytest.approx(rows[0]["probability"], abs=1e-5)
    assert "probability" not in tc.predict(tc.load(trained), images.images[0])[0]


def test_auto_takes_the_threshold_of_the_held_out_images(trained, images):
    predictor = tc.Predictor(trained, unknown_below="auto")
    threshold = read_calibration(trained).threshold
    rows = predictor(torch.cat([images.images, torch.zeros_like(images.images[:1])]))
    for row in rows:
        assert (row["label"] == "unknown") == (row["activation"] < threshold)
    assert rows[-1]["label"] == "unknown"
    assert column(rows, "label").count("unknown") < len(rows)


class Plain(torch.nn.Module):
    classes = ("a", "b")
    preprocess = Preprocess((8, 8), 1)

    def forward(self, images):
        return images.flatten(1)[:, :2]


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"workers": -1}, "workers"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 3}, "top_k"),
        ({"unknown_below": "never"}, "unknown_below"),
        ({"unknown_below": 1.5}, "unknown_below"),
        ({"unknown_below": "auto"}, "unknown_below"),
        ({"output": "drawn"}, "output"),
    ],
)
def test_an_option_that_does_not_fit_is_named(options, argument, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError) as failure:
        tc.Predictor(Plain(), **options)(np.zeros((8, 8)))
    assert failure.value.argument == argument
    assert not list(tmp_path.iterdir())


def test_a_module_without_preprocessing_is_refused():
    with pytest.raises(ArgumentError, match="expected .preprocess"):
        tc.Predictor(torch.nn.Linear(2, 2))(np.zeros((8, 8)))


NAMES = ["a.png", 'with "quotes", commas.png', "two\nlines.png", "latin-\udce9.png", "z.png"]
ROWS = [
    {"path": name, "label": "cat", "activation": 0.5 + index / 7, "activations": {"cat": 1.0}}
    for index, name in enumerate(NAMES)
]


def write(path, rows=ROWS):
    with open_row_file(path) as write_row:
        for row in rows:
            write_row(row)
    return path


def test_a_csv_is_read_back_by_pythons_module(tmp_path):
    text = write(tmp_path / "new" / "rows.csv").read_bytes().decode(errors="surrogateescape")
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["path"] for row in rows] == NAMES
    assert [float(row["activation"]) for row in rows] == pytest.approx(
        [row["activation"] for row in ROWS], rel=1e-5
    )


def test_json_lines_hold_the_rows(tmp_path):
    lines = write(tmp_path / "rows.jsonl").read_bytes().splitlines()
    assert [json.loads(line) for line in lines] == ROWS


@pytest.mark.parametrize("count", [0, 4, 5])
def test_parquet_is_written_in_groups_of_rows(tmp_path, monkeypatch, count):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(row_files, "ROW_GROUP", 2)
    rows = [ROWS[0] | {"path": f"{index}.png"} for index in range(count)]
    file = write(tmp_path / "rows.parquet", rows)
    assert parquet.ParquetFile(file).num_row_groups == max(1, (count + 1) // 2)
    assert parquet.read_table(file).to_pylist() == [columns(row) for row in rows]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_what_fails_leaves_no_file_and_what_is_there_stays(tmp_path, ending):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"rows.{ending}"
    with pytest.raises(KeyboardInterrupt), open_row_file(path) as write_row:
        write_row(ROWS[0])
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
    path.write_text("precious")
    with pytest.raises(RunError, match="exists already"):
        write(path)
    assert path.read_text() == "precious"


def test_columns_of_further_classes():
    row = ROWS[0] | {
        "activations": {"cat": 0.5, "dog": 0.25, "cow": 0.125},
        "probabilities": {"cat": 0.7, "dog": 0.2, "cow": 0.1},
        "probability": 0.7,
        "levels": ["animal", "cat"],
    }
    cells = columns(row, top_k=2)
    assert cells == {
        "path": "a.png",
        "label": "cat",
        "activation": 0.5,
        "probability": 0.7,
        "label_2": "dog",
        "activation_2": 0.25,
        "probability_2": 0.2,
    }
    assert [*columns(row)] == ["path", "label", "activation", "probability"]

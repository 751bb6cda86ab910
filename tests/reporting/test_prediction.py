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
    calibration = tc.Predictor(trained).calibration
    for row in rows:
        activations = torch.tensor([[*row["activations"].values()]])
        [expected] = calibration.probabilities(activations).tolist()
        assert [*row["probabilities"].values()] == pytest.approx(expected)
        assert [*row["probabilities"]] == [*row["activations"]]
        assert row["probability"] == max(expected)
    [best] = tc.Predictor(trained, top_k=2)(images.images[0])
    assert [*best["probabilities"]] == [*best["activations"]] == [*rows[0]["activations"]][:2]
    assert best["probability"] == pytest.approx(rows[0]["probability"], abs=1e-5)
    assert tc.predict(tc.load(trained), images.images[:6]) == tc.Predictor(trained)(
        images.images[:6]
    )


def test_auto_takes_the_threshold_of_the_held_out_images(trained, images):
    predictor = tc.Predictor(trained, unknown_below="auto")
    threshold = predictor.calibration.threshold
    rows = predictor(images.images)
    for row in rows:
        assert (row["label"] == "unknown") == (row["activation"] < threshold)
        assert ("probability" in row) == (row["reason"] == "") == (row["label"] != "unknown")
    assert 0 < column(rows, "label").count("unknown") < len(rows)


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits", "test")


@pytest.fixture(scope="module", params=["capsnet_small", "efficient_capsnet"])
def network(request):
    return tc.create_model(request.param, pretrained=True).eval()


def test_true_digits_are_not_touched(network, digits):
    pixels = digits.images[:200]
    with torch.no_grad():
        expected = network(pixels.float() / 255)
    arrays = (pixels, pixels.numpy(), pixels.float() / 255, list(pixels[:, 0].numpy()))
    for inputs in (*arrays, [Image.fromarray(image[0].numpy()) for image in pixels]):
        rows = tc.Predictor(network)(inputs)
        assert set(column(rows, "changes")) == {""}
        for row, lengths in zip(rows, expected, strict=True):
            assert [row["activations"][name] for name in network.classes] == lengths.tolist()
    assert column(rows, "label").count("unknown") <= 4  # 2 %


def test_what_is_unknown_has_a_reason_and_no_probability(network):
    noise = np.random.default_rng(0).random((80, 80)).astype(np.float32)
    bars = np.zeros((90, 90), np.float32)
    bars[15:75, 15:75] = 1  # a block, which is no digit
    noisy, block, blank = tc.Predictor(network)([noise, bars, np.zeros((28, 28), np.uint8)])
    assert (noisy["label"], block["label"], blank["label"]) == ("unknown", "unknown", "empty")
    assert noisy["reason"].startswith("its background is not even")
    assert block["reason"].split(",")[0] in (
        "its length",
        "its margin",
        "the error of its reconstruction",
    )
    for row in (noisy, block, blank):
        assert not {"probability", "probabilities"} & {*row}
    [answer] = tc.Predictor(network, unknown_below=0)(bars)
    assert answer["label"] in network.classes
    assert 0 < answer["probability"] <= 1


def test_inversion_can_be_decided(network, digits):
    dark = 255 - digits.images[0].numpy()
    seven = {"auto": "7", "yes": "7"}
    for invert, label in seven.items():
        [row] = tc.Predictor(network, invert=invert)(dark)
        assert row["label"] == label
        assert row["changes"].startswith("inverted")
    [row] = tc.Predictor(network, invert="no")(dark)
    assert "inverted" not in row["changes"]
    [row] = tc.Predictor(network, as_is=True)(dark)
    with torch.no_grad():
        [expected] = network(torch.from_numpy(dark).float()[None] / 255).tolist()
    assert [row["activations"][name] for name in network.classes] == expected
    [row] = tc.Predictor(network, as_is=True, invert="yes")(dark)
    assert (row["label"], row["changes"]) == ("7", "inverted")


def test_ink_of_any_color_on_any_paper_is_found(network, digits):
    pixels = digits.images[0, 0].numpy()
    ink = Image.fromarray(pixels).resize((112, 112))
    pictures = []
    for color, paper in (("blue", "yellow"), ("white", "black"), ("black", "white")):
        page = Image.new("RGB", (160, 160), paper)
        page.paste(Image.new("RGB", ink.size, color), (40, 10), ink)
        pictures.append(page)
    for color in ("black", "white", "navy"):
        picture = Image.new("RGBA", ink.size, color)
        picture.putalpha(ink)
        pictures.append(picture)
    assert column(tc.Predictor(network)(pictures), "label") == ["7"] * 6


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


def test_a_module_stays_on_its_device():
    network = Plain().to("meta")
    network.register_buffer("scale", torch.ones(1, device="meta"))
    assert tc.Predictor(network).task.model.scale.is_meta


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


def test_the_first_rows_of_a_parquet_file_may_have_no_probability(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(row_files, "ROW_GROUP", 2)
    rows = [ROWS[0], ROWS[0], ROWS[0] | {"probability": 0.5}]
    file = write(tmp_path / "rows.parquet", rows)
    assert column(parquet.read_table(file).to_pylist(), "probability") == [None, None, 0.5]


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

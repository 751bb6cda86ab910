"""Files of predictions: CSV, JSON lines and Parquet, whole or not at all."""

from __future__ import annotations

import csv
import io
import json

import pytest

from torchcaps.errors import RunError
from torchcaps.reporting import prediction as row_files
from torchcaps.reporting.prediction import columns, open_row_file

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

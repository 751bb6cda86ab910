"""Files of predictions that are continued: whole rows stay, and what was cut off goes."""

from __future__ import annotations

import csv
import io
import json

import pytest

from torchcaps.errors import RunError
from torchcaps.reporting.row_files import Csv, JsonLines, RowFile, columns

NAMES = ["a.png", 'with "quotes", commas.png', "two\nlines.png", "latin-\udce9.png", "z.png"]
ROWS = [
    {"path": name, "label": "cat", "activation": 0.5 + index / 7, "activations": {"cat": 1.0}}
    for index, name in enumerate(NAMES)
]


def write(path, line_format, rows):
    with RowFile(path, line_format) as file:
        for row in rows:
            if not file.is_done(row["path"]):
                file.write(row)
    return path.read_bytes()


@pytest.mark.parametrize("line_format", [Csv(), JsonLines()], ids=["csv", "jsonl"])
def test_a_file_cut_at_any_byte_is_completed_to_the_same_bytes(tmp_path, line_format):
    whole = write(tmp_path / "whole", line_format, ROWS)
    for num_bytes in range(len(whole)):
        cut = tmp_path / "cut"
        cut.write_bytes(whole[:num_bytes])
        assert write(cut, line_format, ROWS) == whole, whole[:num_bytes]


def test_a_csv_is_read_back_by_pythons_module(tmp_path):
    text = write(tmp_path / "rows.csv", Csv(), ROWS).decode(errors="surrogateescape")
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["path"] for row in rows] == NAMES
    assert [float(row["activation"]) for row in rows] == pytest.approx(
        [row["activation"] for row in ROWS], rel=1e-5
    )


def test_json_lines_hold_the_rows(tmp_path):
    lines = write(tmp_path / "rows.jsonl", JsonLines(), ROWS).splitlines()
    assert [json.loads(line) for line in lines] == ROWS


def test_only_the_rows_that_are_missing_are_added(tmp_path):
    path = tmp_path / "rows.csv"
    write(path, Csv(), ROWS[::2])
    with RowFile(path, Csv()) as file:
        assert file.num_rows == 3
        assert [file.is_done(name) for name in NAMES] == [True, False, True, False, True]


@pytest.mark.parametrize(
    ("line_format", "content"),
    [
        (Csv(), b"path,label\na.png,cat\nb.png\nc.png,dog\n"),
        (JsonLines(), b'{"path": "a.png"}\n{"path": "b.p\n{"path": "c.png"}\n'),
        (Csv(), b"name,label\na.png,cat\n"),
        (JsonLines(), b'["path"]\n'),
        (JsonLines(), b"path,label\na.png,cat\n"),
    ],
)
def test_a_file_that_is_damaged_or_of_another_kind_stays_as_it_is(tmp_path, line_format, content):
    path = tmp_path / "rows"
    path.write_bytes(content)
    with pytest.raises(RunError, match="damaged row|something else"), RowFile(path, line_format):
        pass
    assert path.read_bytes() == content


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

from __future__ import annotations

import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from torchcaps.errors import TrainingError
from torchcaps.report import save_figure
from torchcaps.report.plots import evenly


@pytest.fixture
def figure():
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([1, 2])
    return figure


@pytest.mark.parametrize(
    ("count", "most", "expected"),
    [(5, 10, [0, 1, 2, 3, 4]), (86, 3, [0, 42, 85]), (10, 10, list(range(10))), (7, 1, [0]), (1, 5, [0])],
)
def test_evenly_spreads_over_all_and_keeps_the_order(count, most, expected):
    assert evenly(torch.arange(count), most).tolist() == expected


def test_evenly_reaches_every_part_of_many():
    chosen = evenly(torch.arange(86), 40)
    assert len(set(chosen.tolist())) == 40
    assert chosen.diff().max() <= 3


@pytest.mark.parametrize(("name", "kind"), [("x.png", "PNG"), ("x.JPG", "JPEG"), ("x", "PNG")])
def test_a_figure_is_written_in_the_format_of_its_ending(figure, tmp_path, name, kind):
    path = save_figure(figure, tmp_path / "deep" / "er" / name)
    with Image.open(path) as image:
        assert image.format == kind
    assert [file.name for file in path.parent.iterdir()] == [name]


def test_an_ending_that_is_no_picture_is_named_with_those_that_are(figure, tmp_path):
    with pytest.raises(ValueError, match=r"output: expected a file ending in one of .*png.*, got x\.xyz"):
        save_figure(figure, tmp_path / "deep" / "x.xyz")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_the_place_of_the_picture_is_named_and_nothing_is_left(figure, tmp_path):
    (tmp_path / "x.png").mkdir()
    with pytest.raises(TrainingError, match=r"x\.png: cannot be written \(Is a directory\)"):
        save_figure(figure, tmp_path / "x.png")
    assert [file.name for file in tmp_path.iterdir()] == ["x.png"]


def test_a_picture_that_cannot_be_written_leaves_the_old_one(figure, tmp_path, monkeypatch):
    path = save_figure(figure, tmp_path / "x.png")
    before = path.read_bytes()

    def fail(partial, **_):
        partial.write_bytes(b"half of")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(TrainingError, match="No space left on device"):
        save_figure(figure, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]

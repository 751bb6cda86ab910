from __future__ import annotations

import os

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from checks import column
from torchcaps.data import Dataset
from torchcaps.errors import TrainingError
from torchcaps.evaluation import score
from torchcaps.models import create_model
from torchcaps.reporting import save_figure
from torchcaps.tasks import report_items
from torchcaps.tasks.report_items import classified, evenly


@pytest.fixture
def figure():
    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([1, 2])
    return figure


@pytest.mark.parametrize(
    ("count", "limit", "expected"),
    [
        (5, 10, [0, 1, 2, 3, 4]),
        (86, 3, [0, 42, 85]),
        (7, 1, [0]),
    ],
)
def test_evenly_spreads_over_all_and_keeps_the_order(count, limit, expected):
    assert evenly(torch.arange(count), limit).tolist() == expected


@pytest.mark.parametrize(("name", "kind"), [("x.png", "PNG"), ("x.JPG", "JPEG"), ("x", "PNG")])
def test_a_figure_is_written_in_the_format_of_its_ending(figure, tmp_path, name, kind):
    path = save_figure(figure, tmp_path / "deep" / "er" / name)
    with Image.open(path) as image:
        assert image.format == kind
    assert os.listdir(path.parent) == [name]


def test_an_unknown_ending_is_refused_and_those_that_exist_are_listed(figure, tmp_path):
    with pytest.raises(
        ValueError, match=r"output: expected a file ending in one of .*png.*, got x\.xyz"
    ):
        save_figure(figure, tmp_path / "deep" / "x.xyz")
    assert os.listdir(tmp_path) == []


def test_a_folder_in_the_place_of_the_picture_is_named_and_no_file_remains(figure, tmp_path):
    (tmp_path / "x.png").mkdir()
    with pytest.raises(TrainingError, match=r"x\.png: cannot be written \(Is a directory\)"):
        save_figure(figure, tmp_path / "x.png")
    assert os.listdir(tmp_path) == ["x.png"]


def words_of(figure):
    """All words that a figure writes."""
    return "\n".join(map(Text.get_text, figure.findobj(Text)))


def test_classes_in_scripts_that_the_font_lacks_are_drawn_by_number(tmp_path):
    # A letter without a glyph would warn, and a warning fails here.
    names = ("左折禁止", "शरद", "größe")
    torch.manual_seed(0)
    model = create_model("capsnet", num_classes=3, img_size=18, channels=4, primary_types=2).eval()
    images = Dataset(
        torch.randint(0, 255, (9, 1, 18, 18), dtype=torch.uint8),
        {"label": torch.arange(9) % 3},
        names,
        "scripts",
    )
    items = classified(model, score(torch.rand(9, 3), images.labels, names), images)
    confusion_matrix, per_class, *_ = items
    assert [item.key for item in items] == [
        "confusion_matrix",
        "per_class",
        "calibration",
        "activations",
        "reconstructions",
    ]
    for item in items:
        save_figure(item.figure, tmp_path / f"{item.key}.png")
        for name in names[:2]:
            assert name not in words_of(item.figure)
    assert "the number of the class" in confusion_matrix.about
    assert column(per_class.rows, slice(2)) == [("左折禁止", "0"), ("शरद", "1"), ("größe", "2")]


def test_of_very_many_classes_the_least_accurate_are_listed(monkeypatch):
    monkeypatch.setattr(report_items, "MAX_ROWS", 2)
    labels = torch.arange(30) % 3
    guesses = torch.where(torch.arange(30) < 15, (labels + (labels != 1)) % 3, labels)
    activations = torch.nn.functional.one_hot(guesses, 3).float()
    item = report_items.by_class(score(activations, labels, ("a", "b", "c")))
    assert "Of more than 2 classes the least accurate are listed." in item.about
    assert column(item.rows, 0) == ["a", "c"]

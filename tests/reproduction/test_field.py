from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import torch

import torchcaps as tc
from torchcaps.reproduction import MEASURES, Result, field_tables, write_field

ROW = Result(
    recipe="field-mnist",
    row="A",
    budget="hour",
    seed=0,
    figures={"error": 0.02, "products": 12_340_000},
    shown=[],
    published={},
    parameters=1234,
    epochs=3,
    images_per_second=100.0,
    seconds=90.0,
    machine="",
    torch="",
    command="",
)
ROWS = [
    ROW,
    replace(ROW, seed=1, figures={"error": 0.04, "products": 12_340_000}, seconds=150.0),
    replace(ROW, row="A, uniform coupling", figures={"error": 0.05}),
    replace(ROW, row="B", figures={"error": 0.01}, images_per_second=None),
    replace(ROW, recipe="field-cifar10", figures={"error": 0.5}),
    replace(ROW, recipe="other", row="C"),
]


def test_a_line_a_system_the_most_accurate_first():
    tables = field_tables(ROWS)
    assert list(tables) == ["mnist", "cifar10"]
    heading, (first, second) = tables["mnist"]
    assert heading[:5] == ("system", "parameters", "products", "accuracy", "without routing")
    assert first == ("B", "1,234", "-", "99.00 %", "-", "1", "3", "-", "1.5 min")
    accuracies = ("97.00 ± 1.41 %", "95.00 %")
    assert second == ("A", "1,234", "12.3 M", *accuracies, "2", "3", "100", "2.0 min")
    assert len(tables["cifar10"].rows) == 1


def test_the_table_and_its_picture_are_written(tmp_path):
    text, picture = write_field(ROWS, tmp_path)
    assert text.read_text().startswith("# The field, measured\n\n## mnist\n\n| system |")
    assert picture.stat().st_size > 5000


def test_products_of_convolutions_and_votes_are_counted():
    model = tc.create_model("capsnet", decoder=False).eval()
    images = SimpleNamespace(float_images=lambda _: torch.rand(1, 1, 28, 28))
    num_products = MEASURES["products"](SimpleNamespace(model=model, images=images))["products"]
    # Convolutions 8,294,400 + 191,102,976, votes 1,474,560; and routing.
    assert 200_871_936 <= num_products <= 202_000_000


def test_products_of_a_linear_layer_are_exact():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    images = SimpleNamespace(float_images=lambda _: torch.rand(1, 1, 28, 28))
    assert MEASURES["products"](SimpleNamespace(model=model, images=images)) == {"products": 7840}

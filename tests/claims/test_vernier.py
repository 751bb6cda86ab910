"""Verniers and rows of outlines: the label is what is drawn, in every arrangement."""

import pytest
import torch

from claims.sets import vernier
from claims.sets.vernier import CLASSES, OUTLINE, RADIUS, render_verniers
from torchcaps.data import load_dataset


@pytest.fixture
def clean(monkeypatch):
    """Lines of brightness 1 on black, without noise."""
    monkeypatch.setattr(vernier, "NOISE", 0.0)
    monkeypatch.setattr(vernier, "BACKGROUND", 0.0)
    monkeypatch.setattr(vernier, "CONTRAST", (1.0, 1.0))


def shown(images):
    """The two classes of each image."""
    return [row.nonzero().flatten().tolist() for row in images.targets["labels"]]


def test_the_lower_bar_of_a_vernier_is_on_the_side_of_its_label(clean):
    images = render_verniers(20, "alone", number=1)
    for image, (offset, _) in zip(images.images[:, 0], shown(images), strict=True):
        rows, columns = image.nonzero().T
        is_upper = rows < rows.float().mean()
        shift = columns[~is_upper].float().mean() - columns[is_upper].float().mean()
        assert CLASSES[offset] == ("right" if shift > 0 else "left")


@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_vernier_inside_touches_no_outline_and_one_apart_stands_beside(clean, number):
    inside = render_verniers(12, "inside", number=number)
    apart = render_verniers(12, "apart", number=number)
    ink_of_vernier = 2 * vernier.BAR
    for images in (inside, apart):
        for image, (_, label) in zip(images.images[:, 0], shown(images), strict=True):
            outline = vernier.BITMAPS[label - 2].sum()
            assert int((image > 0).sum()) == number * outline + ink_of_vernier
    for image in apart.images[:, 0]:
        columns = image.any(dim=0).nonzero()
        assert columns.max() - columns.min() >= number * OUTLINE - 2


def test_mixed_rows_have_another_kind_beside_the_middle(clean):
    images = render_verniers(12, "mixed", number=5)
    for image, (_, label) in zip(images.images[:, 0], shown(images), strict=True):
        rows = image.any(dim=1).nonzero().flatten()
        columns = image.any(dim=0).nonzero().flatten()
        middle = int(columns.float().mean().round())
        top = int(rows.min())
        expected = torch.from_numpy(vernier.BITMAPS[label - 2]) > 0
        for step, is_kind in ((-2, True), (-1, False), (1, False), (2, True)):
            left = middle - RADIUS + step * OUTLINE
            window = image[top : top + OUTLINE, max(left, 0) : left + OUTLINE] > 0
            if window.shape == expected.shape:
                assert torch.equal(window, expected) == is_kind


def test_the_named_set_has_two_labels_an_image(monkeypatch):
    monkeypatch.setattr(vernier, "COUNTS", {"train": 10, "test": 4})
    train = load_dataset("vernier", "train")
    offsets, kinds = zip(*shown(train), strict=True)
    assert max(offsets) < 2 <= min(kinds)

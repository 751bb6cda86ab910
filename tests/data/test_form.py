"""The form of training images, and pictures brought into it."""

import numpy as np
import pytest
import torch

from torchcaps.data import Preprocess, load_dataset
from torchcaps.data.form import Form, measure_form

from .makers import refusal


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits", "test").float_images()


@pytest.fixture(scope="module")
def form():
    images = load_dataset("digits", "train")
    return measure_form(images.float_images(range(0, 6000, 24)))


def test_it_is_that_of_images_drawn_by_hand():
    images = torch.full((20, 1, 20, 20), 0.9)
    images[:, :, 6:16, 4:10] = 0.1  # ten rows, six columns around row 11 and column 7
    measured = measure_form(images)
    assert (measured.background, measured.ink) == pytest.approx((0.9, 0.1), abs=1e-3)
    assert (measured.size, measured.row, measured.column) == pytest.approx((0.5, 0.55, 0.35))
    assert measured.deviation == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("kind", ["color", "uneven", "two-sided", "empty"])
def test_images_without_an_even_background_and_marks_have_none(kind):
    images = torch.zeros(8, 3, 12, 12)
    images[:, :, 4:8, 4:8] = 1.0
    if kind == "color":
        images[0, 0, 5, 5] = 0.5
    elif kind == "uneven":
        images[4:] += torch.linspace(0, 1, 12)
    elif kind == "two-sided":
        images = 0.5 + images / 2
        images[:, :, 4:6] = 1 - images[:, :, 4:6]
    else:
        images[:] = 0
    assert measure_form(images.clamp(0, 1)) is None


def test_it_is_that_of_each_test_digit(form, digits):
    for digit in digits[:, 0].numpy():
        assert form.fits(digit)
        assert not form.fits(1 - digit)


def shaded(digit, page):
    """A digit as dark ink on a page whose light falls off from one corner."""
    light = 0.7 + 0.3 * np.add.outer(*2 * [np.linspace(0, 1, len(page))]) / 2
    return light * (1 - 0.8 * page)


def placed(digit, side, top, left, factor):
    page = np.zeros((side, side), np.float32)
    ink = np.kron(digit, np.ones((factor, factor), np.float32))
    page[top : top + len(ink), left : left + len(ink)] = ink
    return page


def similarity(image, digit):
    return (image * digit).sum() / np.sqrt((image**2).sum() * (digit**2).sum())


RANDOM = np.random.default_rng(0)
PICTURES = {
    "dark": lambda digit: 1 - digit,
    "faint": lambda digit: 0.8 - 0.4 * digit,
    "in a corner": lambda digit: placed(digit, 100, 70, 0, 1),
    "large": lambda digit: placed(digit, 112, 0, 0, 4),
    "huge": lambda digit: 1 - placed(digit, 600, 100, 150, 12),
    "shaded": lambda digit: shaded(digit, placed(digit, 150, 40, 30, 3)),
    "noisy": lambda digit: PICTURES["shaded"](digit) + RANDOM.normal(0, 0.03, (150, 150)),
    "dirty": lambda digit: np.maximum(
        placed(digit, 150, 40, 30, 3), placed(np.ones((2, 2)), 150, 130, 130, 1)
    ),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_a_digit_is_brought_back(form, digits, kind):
    similarities = []
    inverted = kind in ("dark", "faint", "huge", "shaded", "noisy")
    for digit in digits[:20, 0].numpy():
        pixels, changes, problem = form.bring(PICTURES[kind](digit), (28, 28))
        assert pixels.shape == (1, 28, 28)
        image = pixels[0].numpy()
        assert 0 <= image.min() <= image.max() <= 1
        similarities.append(similarity(image, digit))
        assert changes == "inverted, " * inverted + "cropped and centered"
        assert problem == ""
    assert np.mean(similarities) > 0.88 and min(similarities) > 0.75  # a pixel off at worst


def test_a_page_of_dots_is_a_drawing(form):
    page = np.zeros((120, 120), np.float32)
    page[20:100:8, 20:100:8] = 1
    assert form.bring(page, (28, 28)).problem == ""


@pytest.mark.parametrize("shape", [(1, 1), (2, 300), (5000, 40)])
def test_a_picture_of_any_size_is_taken(form, shape):
    picture = np.zeros(shape, np.float32)
    picture[shape[0] // 2] = 1
    assert form.bring(picture, (28, 28)).pixels.shape == (1, 28, 28)


def test_thin_strokes_become_as_wide_as_usual_ones(form):
    line = np.zeros((280, 280), np.float32)
    line[40:240, 139:141] = 1  # 0.2 pixels of an image of 28
    width = float(form.bring(line, (28, 28)).pixels.sum()) / 20
    assert width == pytest.approx(form.stroke * 28, rel=0.35)


ROW, COLUMN = np.mgrid[:60, :60]
NONE = {
    "black": (np.zeros((28, 28)), "nothing stands out"),
    "white": (np.ones((200, 300)), "nothing stands out"),
    "shaded": (0.5 + (ROW + COLUMN) / 400, "nothing stands out"),
    "noisy": (0.8 + RANDOM.normal(0, 0.01, (90, 90)), "nothing stands out"),
    "noise": (RANDOM.random((90, 90)), "its background is not even"),
    "stripes": (0.5 + 0.5 * np.sin(COLUMN), "its background is not even"),
}


@pytest.mark.parametrize("kind", NONE)
def test_a_picture_without_a_drawing_has_a_problem(form, kind):
    image, problem = NONE[kind]
    brought = form.bring(image, (28, 28))
    assert brought.problem.startswith(problem)
    assert brought.pixels.max() == 0


@pytest.mark.parametrize(("invert", "kept"), [("yes", "dark"), ("no", "light")])
def test_what_is_ink_can_be_decided(form, invert, kept):
    picture = np.full((60, 60), 0.5, np.float32)
    picture[20:40, 10:20] = 0.9  # a broad light bar, and a narrow dark one of the same height
    picture[20:40, 40:44] = 0.1
    pixels, changes, _ = form.bring(picture, (28, 28), invert)
    broad = int((pixels[0].amax(dim=0) > 0.5).sum())
    assert broad == {"dark": 4, "light": 10}[kept]
    assert changes.startswith("inverted") == (invert == "yes")


def test_a_preprocessing_keeps_it_in_json(form):
    preprocess = Preprocess((28, 28), 1, form=form)
    assert Preprocess.from_dict(preprocess.to_dict()) == preprocess
    with refusal(r"form: size: expected a number in \[0, 1\], got 'x'"):
        Form(**{**vars(form), "size": "x"})
    with refusal("form: expected ink on a background"):
        Form(**{**vars(form), "ink": form.background})
    with refusal("preprocess: expected"):
        Preprocess.from_dict({**preprocess.to_dict(), "form": {"size": 1}})

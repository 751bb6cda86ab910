import math

import numpy as np
import pytest
import torch

from torchcaps.data import ImageSet, PlacedSet, affine_copies, load_dataset, placed
from torchcaps.errors import DataError

AMOUNTS = ("rotation", "shear", "scale_x", "scale_y")
# Of `placed(source(), 16)`, top and left; of `affine_copies(nine digits, 2)`.
PLACES = [[4, 5, 0, 3, 3], [3, 7, 0, 1, 0]]
ROTATIONS = [1.95254, -3.05381, 18.54651]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def source(count=40, height=10, width=8, channels=1):
    random = np.random.RandomState(0)
    images = torch.from_numpy(
        random.randint(1, 256, (count, channels, height, width)).astype(np.uint8)
    )
    return ImageSet(images, torch.arange(count) % 2, ("a", "b"), "toy")


def dot(row, column, value=255, side=28, count=1):
    images = torch.zeros(count, 1, side, side, dtype=torch.uint8)
    images[:, 0, row, column] = value
    return ImageSet(images, torch.arange(count) % 2, ("a", "b"), "dot")


def window(images, tops, lefts, height, width):
    return torch.stack(
        [i[:, t : t + height, x : x + width] for i, t, x in zip(images, tops, lefts, strict=True)]
    )


def test_every_place_is_used_and_nothing_is_cut():
    one = source(count=2)
    made = placed(one, 16)
    index = torch.zeros(3000, dtype=torch.int64)
    found, images = (
        made.sample_batch(index, generator=generator()).images.mul(255).round().to(torch.uint8),
        one.images[index],
    )
    assert found.shape == (3000, 1, 16, 16)
    assert (found.flatten(1).long().sum(dim=1) == images[0].long().sum()).all()
    tops = (found[:, 0].amax(dim=2) > 0).int().argmax(dim=1)
    lefts = (found[:, 0].amax(dim=1) > 0).int().argmax(dim=1)
    assert set(tops.tolist()) == set(range(7))  # 0..16 - 10: the last offset included
    assert set(lefts.tolist()) == set(range(9))
    torch.testing.assert_close(window(found, tops, lefts, 10, 8), images)


def test_placed_images_are_where_their_factors_say():
    made = placed(source(), 16)
    assert isinstance(made, PlacedSet)
    torch.testing.assert_close(
        window(made.images, made.factors["top"], made.factors["left"], 10, 8), source().images
    )
    assert (made.images > 0).flatten(1).sum(dim=1).tolist() == [80] * 40
    assert made.name == "placed-toy"


def test_a_placed_set_is_the_same_on_every_machine():
    one, other = placed(source(), 16), placed(source(), 16, seed=1)
    assert torch.stack([one.factors["top"][:5], one.factors["left"][:5]]).tolist() == PLACES
    assert not torch.equal(one.images, other.images)


def test_drawing_moves_the_content_alone():
    made = placed(source(channels=3), 16)
    index = torch.arange(40)
    drawn = made.sample_batch(index, generator=generator())
    assert (drawn.images.shape, drawn.singles) == ((40, 3, 16, 16), None)
    torch.testing.assert_close(
        drawn.images.sum((1, 2, 3)), source(channels=3).float_images().sum((1, 2, 3))
    )
    assert drawn.labels.tolist() == made.labels.tolist()
    assert not torch.equal(drawn.images, made.float_images())
    torch.testing.assert_close(
        drawn.images, made.sample_batch(index, generator=generator()).images, rtol=0, atol=0
    )
    tops = (drawn.images[:, 0].amax(dim=2) > 0).int().argmax(dim=1)
    lefts = (drawn.images[:, 0].amax(dim=1) > 0).int().argmax(dim=1)
    torch.testing.assert_close(
        window(drawn.images, tops, lefts, 10, 8), source(channels=3).float_images()
    )


def test_parts_of_a_placed_set_can_be_drawn():
    kept, held = placed(source(), 16).train_val_split(0.25)
    assert (len(kept), len(held)) == (30, 10)
    assert held.sample_batch([0, 9], generator=generator()).images.shape == (2, 1, 16, 16)


def test_a_resized_canvas_is_refused():
    made = load_dataset("placed-digits", "test", img_size=20)
    with pytest.raises(
        DataError, match="placed-digits: expected canvases of 40 pixels, as they were made, got"
    ):
        made.sample_batch([0], generator=generator())


def test_ranges_of_the_transformations():
    made = affine_copies(dot(14, 14, count=100), copies=20)
    limits = {
        "rotation": (-20, 20),
        "shear": (-0.2, 0.2),
        "scale_x": (0.8, 1.2),
        "scale_y": (0.8, 1.2),
    }
    for name, (low, high) in limits.items():
        values, width = made.factors[name], high - low
        assert low <= values.min() < low + 0.02 * width
        assert high - 0.02 * width < values.max() <= high
        assert abs(values.mean() - (low + high) / 2) < 0.03 * width
    assert made.factors["original"].tolist() == [i // 20 for i in range(2000)]


def test_all_ink_stays_inside_at_the_place_named():
    digits = load_dataset("digits", "test").subset(range(60))
    made = affine_copies(digits, copies=3)
    assert made.images.shape == (180, 1, 40, 40)
    assert (made.images.flatten(1).amax(dim=1) > 0).all()
    rows, columns = (made.images[:, 0] > 0).any(dim=2), (made.images[:, 0] > 0).any(dim=1)
    assert rows.int().argmax(dim=1).tolist() == made.factors["top"].int().tolist()
    assert columns.int().argmax(dim=1).tolist() == made.factors["left"].int().tolist()
    # A digit of changed area keeps its ink, apart from rounding: none was cut off.
    ink = made.images.flatten(1).double().sum(dim=1)
    area = (made.factors["scale_x"] * made.factors["scale_y"]).double()
    before = digits.images.flatten(1).double().sum(dim=1)[made.factors["original"]]
    assert ((ink / (before * area)) - 1).abs().max() < 0.04


def test_all_places_that_keep_the_ink_inside_are_used():
    made = affine_copies(dot(14, 14, count=200), copies=10)
    rows, columns = (made.images[:, 0] > 0).any(dim=2), (made.images[:, 0] > 0).any(dim=1)
    for ink, name in ((rows, "top"), (columns, "left")):
        last = 39 - ink.flip(1).int().argmax(dim=1)
        assert made.factors[name].min() == 0
        assert last.max() == 39


@pytest.mark.parametrize(("row", "column"), [(4, 20), (20, 22), (9, 5), (14, 24)])
def test_a_bright_dot_goes_where_the_matrix_sends_it(row, column):
    """Two dots: the one in the middle is the origin, the other shows where A sends its point."""
    count = 100
    images = torch.zeros(
        count, 1, 29, 29, dtype=torch.uint8
    )  # odd, so that a pixel is in the middle
    images[:, 0, 14, 14] = 255
    images[:, 0, row, column] = 120
    made = affine_copies(ImageSet(images, torch.arange(count) % 2, ("a", "b"), "dots"), copies=1)
    point = torch.tensor([column - 14.0, row - 14.0])  # x to the right, y down
    along = torch.arange(40.0)
    for i in range(count):
        turn, shear, x, y = (float(made.factors[name][i]) for name in AMOUNTS)
        turn = math.radians(turn)
        rotation = torch.tensor(
            [[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]]
        )
        sent = rotation @ torch.tensor([[1.0, shear], [0.0, 1.0]]) @ (torch.tensor([x, y]) * point)
        image = made.images[i, 0].float()
        peak = divmod(
            int(image.argmax()), 40
        )  # of either dot; each lights a few pixels next to each other
        near = torch.maximum((along[:, None] - peak[0]).abs(), (along - peak[1]).abs()) <= 2
        dots = sorted((image * near, image * ~near), key=torch.sum, reverse=True)
        centers = [
            torch.stack([(d.sum(0) * along).sum(), (d.sum(1) * along).sum()]) / d.sum()
            for d in dots
        ]
        assert (centers[1] - centers[0] - sent).norm() < 0.5, (i, centers, sent)


def test_a_seed_settles_the_copies():
    digits = load_dataset("digits", "test").subset(range(9))
    one, two, other = (affine_copies(digits, 2, seed=seed) for seed in (0, 0, 1))
    torch.testing.assert_close(one.images, two.images, rtol=0, atol=0)
    assert not torch.equal(one.images, other.images)
    assert one.factors["rotation"][:3].tolist() == pytest.approx(ROTATIONS)


def test_what_is_too_large_is_drawn_again():
    full = ImageSet(
        torch.full((60, 1, 28, 28), 255, dtype=torch.uint8),
        torch.arange(60) % 2,
        ("a", "b"),
        "full",
    )
    made = affine_copies(full, 2, size=34)
    rows, columns = (
        (made.images[:, 0] > 0).any(dim=2).sum(dim=1),
        (made.images[:, 0] > 0).any(dim=1).sum(dim=1),
    )
    assert max(rows.max(), columns.max()) <= 34
    assert made.images.flatten(1).sum(dim=1).min() > 0
    with pytest.raises(DataError, match="full: image 0 does not fit a canvas of 12 × 12 pixels"):
        affine_copies(full, 1, size=12)


def test_copies_of_one_stay_together():
    kept, held = affine_copies(
        load_dataset("digits", "test").subset(range(100)), 3
    ).train_val_split(0.2)
    assert not set(kept.factors["original"].tolist()) & set(held.factors["original"].tolist())
    assert len(held) % 3 == 0


def test_an_empty_image_stays_empty():
    made = affine_copies(dot(14, 14, value=0, count=2))
    assert made.images.max() == 0


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: placed(source(), 9), ValueError, "size: expected at least 10, got 9"),
        (
            lambda: affine_copies(source(channels=3)),
            DataError,
            "toy: expected uint8 images of one channel",
        ),
        (lambda: affine_copies(source(), 0), ValueError, "copies: expected at least 1, got 0"),
    ],
)
def test_arguments_out_of_range(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_named_sets():
    train, test = load_dataset("affine-digits"), load_dataset("placed-digits", "test")
    assert isinstance(train, PlacedSet)
    assert isinstance(test, PlacedSet)
    assert train.images.shape == (6_000, 1, 40, 40)
    assert test.images.shape == (1_000, 1, 40, 40)
    transformed = load_dataset("affine-digits", "test")
    assert transformed.images.shape == (4_000, 1, 40, 40)
    assert transformed.labels[::4].tolist() == test.labels.tolist()

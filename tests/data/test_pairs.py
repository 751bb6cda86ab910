"""Composites of two images: drawn for training, stored in a set, split without sharing images."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from torchcaps.data import Dataset, PairMaker, load_dataset, make_pairs, multi_hot
from torchcaps.data.pixels import fit_images
from torchcaps.errors import DataError

from .makers import both_splits, class_members, draw, ink_corners, refusal


def make_source(per_class=6, num_classes=4):
    """Random blobs of 12 × 12 that keep 2 pixels of margin, classes in turn."""
    count = per_class * num_classes
    random = np.random.RandomState(0)
    blobs = random.randint(1, 256, (count, 1, 8, 8)).astype(np.uint8)
    images = torch.zeros(count, 1, 12, 12, dtype=torch.uint8)
    images[:, :, 2:-2, 2:-2] = torch.from_numpy(blobs)
    classes = tuple("abcdefgh"[:num_classes])
    return Dataset(images, {"label": torch.arange(count) % num_classes}, classes, "toy")


@pytest.fixture(scope="module")
def source():
    return make_source()


@pytest.fixture(scope="module")
def pairs(source):
    """Two composites of each image of the source."""
    return make_pairs(source, 2)


def compose(singles):
    return singles.int().sum(dim=1).clamp(max=255).to(torch.uint8)


# Drawing.


@pytest.mark.parametrize("max_shift", [0, 1, 4])
def test_composites_add_two_shifted_images(source, max_shift):
    pairs = make_pairs(source, 1, max_shift)
    base = torch.arange(24).repeat(40)
    targets = draw(pairs, base).targets
    images = (255 * draw(pairs, base).inputs).round().to(torch.uint8)
    singles = (255 * targets["singles"]).round().to(torch.uint8)
    side = 12 + 2 * max_shift
    assert images.shape == (960, 1, side, side)
    assert singles.shape == (960, 2, 1, side, side)
    labels = targets["single_label"]
    assert (labels[:, 0] != labels[:, 1]).all()
    assert torch.equal(labels[:, 0], source.labels[base])
    assert_close(images, compose(singles))
    assert singles.int().sum(dim=1).max() > 255  # some are clipped
    # With as much padding as shift nothing is cut off, and every shift occurs.
    for position in (0, 1):
        rows, columns = ink_corners(singles[:, position])
        places = set(range(2, 3 + 2 * max_shift))
        assert set(rows.tolist()) == set(columns.tolist()) == places
    ink = singles[:, 0].flatten(1).sort(dim=1).values[:, -64:]
    expected = source.images[base].flatten(1).sort(dim=1).values[:, -64:]
    assert_close(ink, expected)


def test_partners_are_all_images_of_other_classes_alike():
    pairs = make_pairs(make_source(3, 4))
    maker = pairs.maker
    base = torch.zeros(9000, dtype=torch.int64)
    ranks = torch.arange(int(maker.num_partners_of(base[:1])))
    partners = maker.partner(base[: len(ranks)], ranks).tolist()
    assert sorted(partners) == [1, 2, 3, 5, 6, 7, 9, 10, 11]
    counts = draw(pairs, base).targets["single_label"][:, 1].bincount(minlength=4)
    assert counts[0] == 0
    assert (counts[1:] - 3000).abs().max() < 200


def test_less_padding_than_shift_cuts_off(source):
    batch = draw(make_pairs(source, 1, max_shift=6, pad=0), torch.zeros(200, dtype=torch.int64))
    ink = batch.targets["singles"][:, 0].flatten(1).sum(dim=1)
    uncut = float(source.float_images([0]).sum())
    assert batch.inputs.shape[-1] == 12
    assert ink.min() < uncut - 0.1
    assert ink.max() <= uncut + 1e-4


def test_a_set_that_moves_keeps_its_padding(source):
    pairs = make_pairs(source, 1, max_shift=6, pad=0)
    moved = pairs.to("cpu")
    assert moved.maker.singles(moved, [0, 1]).shape[-2:] == moved.img_size == (12, 12)
    assert_close(draw(moved, torch.arange(4)).inputs, draw(pairs, range(4)).inputs)
    maker = make_pairs(source, 1, max_shift=2, pad=1, seed=7).to("cpu").maker
    assert (maker.max_shift, maker.pad, maker.seed) == (2, 1, 7)


# A set of pairs.


def test_a_set_is_the_same_on_every_machine(source):
    pairs = make_pairs(source, 2, seed=5)
    assert pairs.targets["chosen"][:6].tolist() == [
        [0, 13],
        [0, 11],
        [1, 15],
        [1, 2],
        [2, 19],
        [2, 13],
    ]
    assert pairs.targets["moves"][:2].tolist() == [[[3, -1], [-3, 1]], [[3, -1], [3, -4]]]
    assert pairs.name == "multi-toy"


def test_partners_of_an_image_differ_and_it_keeps_its_place(source):
    pairs = make_pairs(source, per_image=9)
    assert torch.equal(pairs.targets["chosen"][:, 0], torch.arange(24).repeat_interleave(9))
    for partners in pairs.targets["chosen"][:, 1].view(24, 9).tolist():
        assert len(set(partners)) == 9
    assert (pairs.labels.sum(dim=1) == 2).all()
    moves = pairs.targets["moves"][:, 0].view(24, 9, 2)
    assert (moves == moves[:, :1]).all()
    assert len(pairs.targets["moves"][:, 1].unique(dim=0)) > 9
    assert pairs.targets["moves"].abs().max() == 4


def test_a_batch_to_train_on_is_drawn_anew(pairs):
    indices = torch.tensor([0, 1, 40])
    batch = draw(pairs, indices)
    classes = batch.targets["single_label"]
    assert torch.equal(batch.targets["labels"].nonzero()[:, 1], classes.sort().values.flatten())
    singles = batch.targets["singles"]
    assert batch.inputs.dtype == singles.dtype == torch.float32
    assert not torch.equal(batch.inputs, pairs.float_images(indices))
    assert_close(draw(pairs, indices).inputs, batch.inputs, rtol=0, atol=0)


def test_labels_become_0_and_1():
    assert multi_hot(torch.tensor([2, 0]), 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert multi_hot(torch.tensor([[1, 0, 1]]), 4).tolist() == [[1, 0, 1, 0]]


def test_resized_composites_have_resized_singles(pairs):
    resized = replace(pairs, inputs=fit_images(pairs.images, 14, 3))
    assert resized.maker.singles(resized, [0, 1]).shape == (2, 2, 3, 14, 14)
    batch = draw(resized, torch.tensor([0]))
    assert batch.targets["singles"].shape == (1, 2, 3, 14, 14)
    _, val = resized.train_val_split(0.5)
    assert val.images.shape[1:] == (3, 14, 14)


# Splits.


def image_bytes(images):
    return {image.numpy().tobytes() for image in images}


def test_train_and_val_share_no_single_image():
    pairs = make_pairs(make_source(10, 4), 3)
    train, val = pairs.train_val_split(0.2)
    assert (len(train), len(val)) == (96, 24)
    train_images = image_bytes(train.maker.source.images)
    val_images = image_bytes(val.maker.source.images)
    assert (len(train_images), len(val_images)) == (32, 8)
    assert not train_images & val_images
    for part in (train, val):
        assert_close(part.images, compose(part.maker.singles(part, range(len(part)))))
    _, second_val = pairs.train_val_split(0.2)
    assert_close(second_val.images, val.images, rtol=0, atol=0)


def test_groups_of_the_source_are_never_split():
    toys = torch.arange(20) // 4
    grouped = make_source(10, 2)
    grouped = replace(grouped, targets={**grouped.targets, "toy": toys}, groups=toys)
    groups = []
    for part in make_pairs(grouped).train_val_split(0.4):
        groups.append(class_members(part.maker.source, "toy"))
    assert groups[1]
    assert not groups[0] & groups[1]


def test_named_sets_are_made_of_the_splits_of_their_source():
    train, test = both_splits("multi-digits")
    assert train.images.shape == (6_000, 1, 36, 36)
    assert test.images.shape == (2_000, 1, 36, 36)
    digits = image_bytes(load_dataset("digits", "test").images)
    assert image_bytes(test.maker.source.images) == digits
    assert not digits & image_bytes(train.maker.source.images)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda s: make_pairs(s.subset([0, 4])),
            "toy: expected uint8 images of two classes or more",
        ),
        (
            lambda s: PairMaker(replace(s, inputs=s.float_images())),
            r"expected uint8 images .* got Dataset\(.* float32",
        ),
        (lambda s: PairMaker(s, -1), "max_shift: expected at least 0, got -1"),
        (lambda s: make_pairs(s, 10), "per_image: expected between 1 and 9, got 10"),
    ],
)
def test_an_unsuitable_source_or_amount_is_refused(source, make, message):
    with refusal(message, (DataError, ValueError)):
        make(source)

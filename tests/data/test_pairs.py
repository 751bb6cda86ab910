from dataclasses import replace

import numpy as np
import pytest
import torch

from torchcaps.data import ImageSet, PairMaker, PairSet, load_dataset, make_pairs, multi_hot
from torchcaps.data.pixels import fit_images
from torchcaps.errors import DataError

# Of `make_pairs(source(), 2, seed=5)`.
CHOSEN = [[0, 13], [0, 11], [1, 15], [1, 2], [2, 19], [2, 13]]
MOVES = [[[3, -1], [-3, 1]], [[3, -1], [3, -4]]]


def source(per_class=6, classes=4, side=12, seed=0, name="toy"):
    """Random blobs that keep 2 pixels of margin, classes in turn."""
    count = per_class * classes
    images = torch.zeros(count, 1, side, side, dtype=torch.uint8)
    random = np.random.RandomState(seed)
    images[:, :, 2:-2, 2:-2] = torch.from_numpy(
        random.randint(1, 256, (count, 1, side - 4, side - 4)).astype(np.uint8)
    )
    return ImageSet(images, torch.arange(count) % classes, tuple("abcdefgh"[:classes]), name)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def summed(singles):
    return singles.int().sum(dim=1).clamp(max=255).to(torch.uint8)


def corner(images):
    """Row and column of the first ink of each image `[n, 1, height, width]`."""
    ink = images[:, 0] > 0
    return torch.stack(
        [ink.any(dim=2).int().argmax(dim=1), ink.any(dim=1).int().argmax(dim=1)], dim=1
    )


@pytest.mark.parametrize("max_shift", [0, 1, 4])
def test_drawn_composites(max_shift):
    whole, base = source(), torch.arange(24).repeat(40)
    pairs = PairMaker(whole, max_shift).sample_batch(base, generator=generator())
    side = 12 + 2 * max_shift
    assert pairs.images.shape == (960, 1, side, side)
    assert pairs.singles.shape == (960, 2, 1, side, side)
    assert (pairs.labels[:, 0] != pairs.labels[:, 1]).all()
    assert pairs.labels[:, 0].tolist() == whole.labels[base].tolist()
    torch.testing.assert_close(pairs.images, summed(pairs.singles))
    assert pairs.singles.int().sum(dim=1).max() > 255  # clipping happened
    for k in (0, 1):  # with as much padding as shift nothing is cut off, and every shift occurs
        moves = corner(pairs.singles[:, k]) - 2 - max_shift
        assert (
            set(moves[:, 0].tolist())
            == set(moves[:, 1].tolist())
            == set(range(-max_shift, max_shift + 1))
        )
    kept = pairs.singles[:, 0].flatten(1).sort(dim=1).values[:, -64:]
    torch.testing.assert_close(kept, whole.images[base].flatten(1).sort(dim=1).values[:, -64:])


def test_partners_are_all_images_of_other_classes_alike():
    maker, base = PairMaker(source(3, 4)), torch.zeros(9000, dtype=torch.int64)
    ranks = torch.arange(int(maker.others(base[:1])))
    partners = maker.partner(base[: len(ranks)], ranks).tolist()
    assert sorted(partners) == [i for i in range(12) if i % 4 != 0]
    pairs = maker.sample_batch(base, generator=generator())
    assert (pairs.labels[:, 1].bincount(minlength=4)[1:] - 3000).abs().max() < 200
    assert pairs.labels[:, 1].min() == 1


def test_less_padding_than_shift_cuts_off():
    whole = source()
    uncut = int(whole.images[0].sum())
    pairs = PairMaker(whole, max_shift=6, pad=0).sample_batch(
        torch.zeros(200, dtype=torch.int64), generator=generator()
    )
    ink = pairs.singles[:, 0].flatten(1).sum(dim=1)
    assert pairs.images.shape[-1] == 12
    assert ink.min() < uncut
    assert ink.max() <= uncut


def test_draws_depend_on_the_generator_alone():
    maker, base = PairMaker(source()), torch.arange(24)
    first, again, other = (
        maker.sample_batch(base, generator=generator(seed)) for seed in (1, 1, 2)
    )
    for one, two in zip(first, again, strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)
    assert not torch.equal(first.images, other.images)


def test_a_fixed_set_is_the_same_on_every_machine():
    made = make_pairs(source(), 2, seed=5)
    assert made.chosen[:6].tolist() == CHOSEN
    assert made.moves[:2].tolist() == MOVES


def test_partners_of_an_image_differ_and_it_keeps_its_place():
    made = make_pairs(source(6, 4), per_image=9)
    assert len(made) == 24 * 9
    assert made.chosen[:, 0].tolist() == [i // 9 for i in range(24 * 9)]
    for rows in made.chosen[:, 1].view(24, 9):
        assert len(set(rows.tolist())) == 9
    assert (made.labels[:, 0] != made.labels[:, 1]).all()
    first = made.moves[:, 0].view(24, 9, 2)
    assert (first == first[:, :1]).all()
    assert len(made.moves[:, 1].unique(dim=0)) > 9
    assert made.moves.abs().max() == 4


def test_singles_make_the_composite():
    made = make_pairs(source(), 2)
    for index in ([0, 5, 47], range(48)):
        torch.testing.assert_close(made.images[list(index)], summed(made.singles(index)))
    assert made.singles([3]).dtype == torch.uint8


def test_drawing_for_training():
    made = make_pairs(source(), 2)
    drawn = made.sample_batch([0, 1, 40], generator=generator())
    assert drawn.labels[:, 0].tolist() == made.labels[[0, 1, 40], 0].tolist()
    assert drawn.images.dtype == drawn.singles.dtype == torch.float32
    torch.testing.assert_close(drawn.images, drawn.singles.sum(dim=1).clamp(max=1))
    assert drawn.images.max() <= 1
    assert not torch.equal(drawn.images, made.float_images([0, 1, 40]))
    again = made.sample_batch([0, 1, 40], generator=generator())
    torch.testing.assert_close(drawn.images, again.images, rtol=0, atol=0)


def test_a_subset_keeps_its_singles():
    made = make_pairs(source(), 2)
    part = made.subset([40, 3, 7])
    assert isinstance(part, PairSet)
    torch.testing.assert_close(part.images, summed(part.singles([0, 1, 2])))
    torch.testing.assert_close(part.labels, made.labels[[40, 3, 7]])


def single_images(part):
    """The single images that composites consist of, or may be drawn from, as bytes."""
    stored = {part.maker.source.images[i].numpy().tobytes() for i in part.chosen.flatten().tolist()}
    return stored | {image.numpy().tobytes() for image in part.maker.source.images}


def test_a_holdout_shares_no_single_image():
    made = make_pairs(source(10, 4), 3)
    kept, held = made.train_val_split(0.2)
    assert (len(kept), len(held)) == (96, 24)
    assert (len(single_images(kept)), len(single_images(held))) == (32, 8)
    assert not single_images(kept) & single_images(held)
    for part in (kept, held):
        torch.testing.assert_close(part.images, summed(part.singles(range(len(part)))))
    again = made.train_val_split(0.2)[1]
    torch.testing.assert_close(held.images, again.images, rtol=0, atol=0)


def test_a_holdout_respects_the_groups_of_the_source():
    whole = source(10, 2)
    grouped = ImageSet(
        whole.images, whole.labels, whole.classes, "g", {"toy": torch.arange(20) // 4}, "toy"
    )
    kept, held = make_pairs(grouped).train_val_split(0.4)
    pairs = []
    for single in (kept.maker.source, held.maker.source):
        pairs.append(set(zip(single.labels.tolist(), single.factors["toy"].tolist(), strict=True)))
    assert pairs[1]
    assert not pairs[0] & pairs[1]


def test_two_hot_targets():
    assert multi_hot(torch.tensor([[2, 0]]), 4).tolist() == [[1.0, 0.0, 1.0, 0.0]]
    with pytest.raises(ValueError, match=r"labels: expected \[batch, several\]"):
        multi_hot(torch.tensor([1, 2]), 4)


def test_resized_composites_have_resized_singles():
    made = make_pairs(source())
    small = replace(made, images=fit_images(made.images, 14, 3))
    assert small.singles([0, 1]).shape == (2, 2, 3, 14, 14)
    assert small.sample_batch([0], generator=generator()).singles.shape == (1, 2, 3, 14, 14)
    assert small.train_val_split(0.5)[1].images.shape[1:] == (3, 14, 14)


def test_named_sets_of_pairs():
    train, test = load_dataset("multi-digits"), load_dataset("multi-digits", "test")
    assert train.images.shape == (6_000, 1, 36, 36)
    assert test.images.shape == (2_000, 1, 36, 36)
    digits = {image.numpy().tobytes() for image in load_dataset("digits", "test").images}
    assert {image.numpy().tobytes() for image in test.maker.source.images} == digits
    assert not digits & {image.numpy().tobytes() for image in train.maker.source.images}


def test_boxes_overlap_as_documented():
    """Boxes of 20 × 20 that both move by up to 4: 72.6 % of a box on average, exactly ((20 - E|d|) / 20)²."""
    moves = make_pairs(source(100), 8).moves
    apart = (moves[:, 0] - moves[:, 1]).abs().double()
    overlap = ((20 - apart) / 20).prod(dim=1).mean()
    assert abs(overlap - 0.726) < 0.01


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (
            lambda: make_pairs(source().subset([0, 4])),
            DataError,
            "toy: expected images of two classes or more",
        ),
        (
            lambda: PairMaker(replace(source(), images=source().float_images())),
            DataError,
            r"expected uint8 images to make pairs of, got torch\.float32",
        ),
        (lambda: PairMaker(source(), -1), ValueError, "max_shift: expected at least 0, got -1"),
        (lambda: PairMaker(source(), 2, -1), ValueError, "pad: expected at least 0, got -1"),
        (
            lambda: make_pairs(source(), 10),
            ValueError,
            "per_image: expected between 1 and 9, got 10",
        ),
        (lambda: make_pairs(source(), 0), ValueError, "per_image: expected between 1 and 9, got 0"),
    ],
)
def test_what_cannot_be_paired(make, error, words):
    with pytest.raises(error, match=words):
        make()

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from torchcaps.data import affine, random_erasing, random_horizontal_flip, random_morphology, shift


def drawn(seed):
    return torch.Generator().manual_seed(seed)


def shifted_by_loop(images, max_shift, seed):
    moves = torch.randint(2 * max_shift + 1, (2, len(images)), generator=drawn(seed)) - max_shift
    _, _, height, width = images.shape
    out = torch.zeros_like(images)
    for b, (down, right) in enumerate(moves.T.tolist()):
        for y in range(height):
            for x in range(width):
                if 0 <= y + down < height and 0 <= x + right < width:
                    out[b, :, y, x] = images[b, :, y + down, x + right]
    return out


@settings(deadline=None)
@given(
    batch=st.integers(1, 5),
    channels=st.integers(1, 3),
    height=st.integers(1, 6),
    width=st.integers(1, 6),
    max_shift=st.integers(0, 7),
    seed=st.integers(0, 99),
    dtype=st.sampled_from([torch.uint8, torch.float32, torch.float64]),
)
def test_shift_is_the_loop(batch, channels, height, width, max_shift, seed, dtype):
    images = torch.randint(1, 256, (batch, channels, height, width), generator=drawn(seed)).to(
        dtype
    )
    before = images.clone()
    moved = shift(images, max_shift, generator=drawn(seed))
    assert moved.dtype == dtype
    assert moved.is_contiguous()
    assert torch.equal(moved, shifted_by_loop(images, max_shift, seed))
    assert torch.equal(images, before)


def test_every_shift_is_drawn_equally_often():
    images = torch.zeros(25_000, 1, 5, 5)
    images[:, 0, 2, 2] = 1
    counts = shift(images, 2, generator=drawn(0)).sum(dim=(0, 1))
    assert counts.sum() == 25_000
    assert (counts - 1000).abs().max() < 5 * math.sqrt(1000)


def test_the_generator_decides():
    images = torch.rand(20, 1, 9, 9)
    one = drawn(3)
    first, second = shift(images, generator=one), shift(images, generator=one)
    assert not torch.equal(first, second)
    assert torch.equal(first, shift(images, generator=drawn(3)))


@settings(deadline=None)
@given(probability=st.sampled_from([0.0, 0.3, 1.0]), seed=st.integers(0, 99))
def test_flip_is_the_loop(probability, seed):
    images = torch.rand(6, 2, 3, 4)
    chosen = torch.rand(6, generator=drawn(seed)) < probability
    expected = torch.stack(
        [image.flip(-1) if yes else image for image, yes in zip(images, chosen, strict=True)]
    )
    assert torch.equal(random_horizontal_flip(images, probability, generator=drawn(seed)), expected)


def affine_by_loop(images, amounts):
    """Every output pixel looks up A⁻¹(p - move) about the center, bilinearly, zero outside."""
    _, _, height, width = images.shape
    middle = np.array([(width - 1) / 2, (height - 1) / 2])
    out = np.zeros(images.shape)
    for b, (turn, factor, slant, right, down) in enumerate(amounts):
        rotation = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
        inverse = np.linalg.inv(factor * rotation @ np.array([[1, slant], [0, 1]]))
        for y in range(height):
            for x in range(width):
                source = inverse @ (np.array([x - right, y - down]) - middle) + middle
                out[b, :, y, x] = bilinear(images[b].numpy(), *source)
    return torch.from_numpy(out).float()


def bilinear(image, x, y):
    total = np.zeros(image.shape[0])
    for row in (math.floor(y), math.floor(y) + 1):
        for column in (math.floor(x), math.floor(x) + 1):
            if 0 <= row < image.shape[1] and 0 <= column < image.shape[2]:
                total += image[:, row, column] * (1 - abs(y - row)) * (1 - abs(x - column))
    return total


@pytest.mark.parametrize("size", [(7, 7), (5, 9), (8, 4)])
@pytest.mark.parametrize("seed", [0, 1])
def test_affine_is_the_loop(size, seed):
    images = torch.rand(4, 2, *size, generator=drawn(9))
    limits = {"degrees": 40.0, "scale": (0.7, 1.4), "shear": 20.0, "translate": 0.2}
    draw = drawn(seed)
    turn, factor, slant = (torch.rand(4, generator=draw) for _ in range(3))
    move = (2 * torch.rand(4, 2, generator=draw) - 1) * 0.2 * torch.tensor([size[1], size[0]])
    amounts = zip(
        ((2 * turn - 1) * math.radians(40)).tolist(),
        (0.7 + 0.7 * factor).tolist(),
        ((2 * slant - 1) * math.radians(20)).tan().tolist(),
        *move.T.tolist(),
        strict=True,
    )
    expected = affine_by_loop(images, amounts)
    torch.testing.assert_close(
        affine(images, **limits, generator=drawn(seed)), expected, rtol=0, atol=2e-5
    )


def test_affine_without_limits_changes_nothing():
    images = torch.rand(3, 1, 6, 5)
    torch.testing.assert_close(affine(images, generator=drawn(0)), images, rtol=0, atol=1e-6)


def test_affine_of_bytes_is_the_rounded_affine():
    images = torch.randint(0, 256, (3, 1, 6, 5), generator=drawn(1)).to(torch.uint8)
    moved = affine(images, degrees=30, generator=drawn(2))
    assert moved.dtype == torch.uint8
    assert torch.equal(
        moved, affine(images.float(), degrees=30, generator=drawn(2)).round().to(torch.uint8)
    )


def test_squish_makes_narrower_and_draws_after_the_rest():
    images = torch.ones(2000, 1, 3, 40)
    before, after = drawn(3), drawn(3)
    plain = affine(images, degrees=5, generator=before)
    squished = affine(images, aspect=0.25, generator=after)
    torch.testing.assert_close(
        affine(images, degrees=5, aspect=0.0, generator=drawn(3)), plain, rtol=0, atol=0
    )
    torch.rand(2000, generator=before)
    assert torch.equal(
        torch.rand(1, generator=before), torch.rand(1, generator=after)
    )  # one more number each
    left = squished[:, 0, 1].sum(dim=1) / 40
    assert left.min() == pytest.approx(0.75, abs=0.01)
    assert left.mean() == pytest.approx(0.875, abs=0.01)
    torch.testing.assert_close(squished.flip(-1), squished, rtol=0, atol=1e-4)  # about the middle
    torch.testing.assert_close(
        squished[:, :, 0, 20], images[:, :, 0, 20]
    )  # and no lower than before


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_erase_is_the_loop(dtype):
    images = torch.randint(1, 256, (60, 2, 7, 5), generator=drawn(1)).to(dtype)
    found, expected = random_erasing(images, 3, generator=drawn(2)), images.clone()
    draw = drawn(2)
    tops, lefts = (
        torch.randint(count, (60, 1), generator=draw).flatten().tolist() for count in (5, 3)
    )
    for image, top, left in zip(expected, tops, lefts, strict=True):
        image[:, top : top + 3, left : left + 3] = 0
    assert found.dtype == dtype
    assert torch.equal(found, expected)
    assert set(tops) == set(range(5))
    assert torch.equal(random_erasing(images, 0, generator=drawn(2)), images)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_thicken_is_the_loop(dtype):
    images = torch.randint(1, 256, (60, 2, 5, 4), generator=drawn(1)).to(dtype)
    found, before = random_morphology(images, 0.6, generator=drawn(2)), images.clone()
    chosen, kinds = torch.rand(60, generator=drawn(2)).tolist(), []
    for image, changed, number in zip(images, found, chosen, strict=True):
        kinds.append(max if number < 0.3 else min if number < 0.6 else lambda values: values[0])
        for c, y, x in np.ndindex(2, 5, 4):
            inside = [(y + down, x + right) for down in (0, 1) for right in (0, 1)]
            values = [float(image[c, v, u]) if v < 5 and u < 4 else 0.0 for v, u in inside]
            assert float(changed[c, y, x]) == kinds[-1](values)
    assert found.dtype == dtype
    assert torch.equal(images, before)
    assert {max, min} < set(kinds)
    assert torch.equal(random_morphology(images, 0.0, generator=drawn(2)), images)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_cpu_generator_gives_the_same_on_a_gpu(dtype):
    images = torch.randint(0, 256, (9, 2, 7, 6), generator=drawn(0)).to(dtype)
    for change in (shift, random_horizontal_flip):
        there = change(images.cuda(), generator=drawn(1))
        assert there.is_cuda
        assert torch.equal(there.cpu(), change(images, generator=drawn(1)))
    expected = affine(images, degrees=20, generator=drawn(1))
    there = affine(images.cuda(), degrees=20, generator=drawn(1)).cpu()
    torch.testing.assert_close(there, expected, rtol=0, atol=1 if dtype == torch.uint8 else 0.01)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x, g: shift(x[0], generator=g),
            r"images: expected \[batch, channels, height, width\]",
        ),
        (lambda x, g: shift(x, -1, generator=g), "max_shift: expected at least 0, got -1"),
        (
            lambda x, g: random_horizontal_flip(x, 1.5, generator=g),
            "probability: expected between 0 and 1, got 1.5",
        ),
        (
            lambda x, g: affine(x, scale=(1.2, 0.8), generator=g),
            "scale: expected between 0.001 and 0.8, got 1.2",
        ),
        (lambda x, g: affine(x, shear=90, generator=g), "shear: expected between 0 and 89, got 90"),
        (
            lambda x, g: affine(x, aspect=1.0, generator=g),
            "aspect: expected between 0 and 0.9, got 1.0",
        ),
        (
            lambda x, g: random_morphology(x, 1.5, generator=g),
            "share: expected between 0 and 1, got 1.5",
        ),
        (lambda x, g: random_erasing(x, 4, generator=g), "side: expected between 0 and 3, got 4"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.rand(2, 1, 3, 3), drawn(0))

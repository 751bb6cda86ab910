"""Every augmentation is the plain loop over its images, with the numbers of its generator."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.ndimage import affine_transform
from torch.testing import assert_close

from torchcaps.data import center_crop, random_crop
from torchcaps.data.augment.changes import (
    AffineSettings,
    ColorJitterSettings,
    EraseSettings,
    FlipSettings,
    MorphologySettings,
    ShiftSettings,
    affine,
    color_jitter,
    erase,
    flip,
    morphology,
    shift,
)
from torchcaps.testing import seeded

from .makers import refusal


def random_bytes(shape, dtype=torch.uint8):
    """Numbers in 1..255, so that 0 is what comes in from outside."""
    return torch.randint(1, 256, shape, generator=seeded(1)).to(dtype)


# Shift and flip.


def shift_by_loop(images, max_shift, seed):
    moves = torch.randint(2 * max_shift + 1, (2, len(images)), generator=seeded(seed))
    height, width = images.shape[2:]
    shifted = torch.zeros_like(images)
    for index, (down, right) in enumerate((moves - max_shift).T.tolist()):
        for y in range(height):
            for x in range(width):
                if 0 <= y + down < height and 0 <= x + right < width:
                    shifted[index, :, y, x] = images[index, :, y + down, x + right]
    return shifted


@settings(deadline=None, max_examples=40)
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
    images = random_bytes((batch, channels, height, width), dtype)
    original = images.clone()
    shifted = shift(images, ShiftSettings(max_shift), seeded(seed))
    assert shifted.dtype == dtype
    assert shifted.is_contiguous()
    assert torch.equal(shifted, shift_by_loop(images, max_shift, seed))
    assert torch.equal(images, original)


def test_flip_is_the_loop():
    images = torch.rand(20, 2, 3, 4)
    flipped = flip(images, FlipSettings(True), seeded(3))
    draws = torch.rand(20, generator=seeded(3)).tolist()
    for image, outcome, draw in zip(images, flipped, draws, strict=True):
        assert torch.equal(outcome, image.flip(-1) if draw < 0.5 else image)


# Affine.


def affine_by_scipy(image, turn, factor, shear):
    """Every output pixel p shows the input at A⁻¹p about the center, zero outside."""
    height, width = image.shape[1:]
    rotation = np.array([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    inverse = np.linalg.inv(factor * rotation @ np.array([[1, shear], [0, 1]]))
    matrix = inverse[::-1, ::-1]  # for (row, column) in place of (x, y)
    center = np.array([(height - 1) / 2, (width - 1) / 2])
    offset = center - matrix @ center
    channels = [
        affine_transform(channel, matrix, offset, order=1, mode="grid-constant")
        for channel in image.double().numpy()
    ]
    return torch.from_numpy(np.stack(channels)).float()


@pytest.mark.parametrize(("size", "seed"), [((7, 7), 0), ((5, 9), 1), ((8, 4), 2)])
def test_affine_is_that_of_scipy(size, seed):
    images = torch.rand(4, 2, *size, generator=seeded(9))
    slope = math.tan(math.radians(20))
    limits = AffineSettings(degrees=40, zoom=0.3, shear=slope)
    transformed = affine(images, limits, seeded(seed))
    draw = seeded(seed)
    turns = (2 * torch.rand(4, generator=draw) - 1) * math.radians(40)
    factors = 0.7 + 0.6 * torch.rand(4, generator=draw)
    shears = ((2 * torch.rand(4, generator=draw) - 1) * math.radians(20)).tan()
    for amounts in zip(images, turns, factors, shears, transformed, strict=True):
        image, turn, factor, shear, outcome = amounts
        expected = affine_by_scipy(image, float(turn), float(factor), float(shear))
        assert_close(outcome, expected, rtol=0, atol=2e-5)


def test_affine_of_bytes_is_the_rounded_affine():
    images = random_bytes((3, 1, 6, 5))
    transformed = affine(images, AffineSettings(degrees=30), seeded(2))
    floats = affine(images.float(), AffineSettings(degrees=30), seeded(2))
    assert torch.equal(transformed, floats.round().to(torch.uint8))


def test_aspect_makes_images_narrower():
    images = torch.ones(2000, 1, 3, 40)
    narrowed = affine(images, AffineSettings(aspect=0.25), seeded(3))
    widths = narrowed[:, 0, 1].sum(dim=1) / 40
    assert widths.min() == pytest.approx(0.75, abs=0.01)
    assert widths.mean() == pytest.approx(0.875, abs=0.01)
    assert_close(narrowed.flip(-1), narrowed, rtol=0, atol=1e-4)  # about the middle
    assert_close(narrowed[:, :, 0, 20], images[:, :, 0, 20])  # no lower than before


# Erase, morphology and color.


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_erase_is_the_loop(dtype):
    images = random_bytes((60, 2, 7, 5), dtype)
    erased = erase(images, EraseSettings(3), seeded(2))
    draw = seeded(2)
    rows = torch.randint(5, (60, 1), generator=draw).flatten().tolist()
    columns = torch.randint(3, (60, 1), generator=draw).flatten().tolist()
    expected = images.clone()
    for image, row, column in zip(expected, rows, columns, strict=True):
        image[:, row : row + 3, column : column + 3] = 0
    assert erased.dtype == dtype
    assert torch.equal(erased, expected)
    assert set(rows) == set(range(5))
    assert torch.equal(erase(images, EraseSettings(0), seeded(2)), images)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_morphology_is_the_loop(dtype):
    images = random_bytes((30, 2, 5, 4), dtype)
    original = images.clone()
    changed = morphology(images, MorphologySettings(0.6), seeded(2))
    for index, draw in enumerate(torch.rand(30, generator=seeded(2)).tolist()):
        padded = np.pad(images[index].numpy(), ((0, 0), (0, 1), (0, 1)))
        for channel, y, x in np.ndindex(2, 5, 4):
            window = padded[channel, y : y + 2, x : x + 2]
            expected = window[0, 0]
            if draw < 0.3:
                expected = window.max()
            elif draw < 0.6:
                expected = window.min()
            assert changed[index, channel, y, x] == expected
    assert changed.dtype == dtype
    assert torch.equal(images, original)
    assert torch.equal(morphology(images, MorphologySettings(0.0), seeded(2)), images)


def test_color_jitter_changes_all_channels_alike_and_within_range():
    images = torch.rand(200, 2, 6, 6, generator=seeded(1))
    changed = color_jitter(images, ColorJitterSettings(True), seeded())
    brightness = changed.mean((2, 3)) - images.mean((2, 3))
    assert_close(brightness[:, 0], brightness[:, 1], atol=1e-5, rtol=0)
    assert brightness.abs().max() <= 63 / 255 + 1e-6
    assert brightness.min() < -0.2 < 0.2 < brightness.max()
    contrast = changed - changed.mean((2, 3), keepdim=True)
    contrast /= images - images.mean((2, 3), keepdim=True)
    assert (contrast.amax((1, 2, 3)) - contrast.amin((1, 2, 3))).max() < 1e-2
    assert 0.2 - 1e-3 <= contrast.median() <= 1.8 + 1e-3


# Windows.


def numbered_pixels(count):
    """Images whose pixels say where they are: 48 · row + column, and the negative."""
    place = torch.arange(48 * 48.0).view(48, 48)
    return torch.stack([place, -place]).expand(count, 2, 48, 48)


def test_random_crop_cuts_whole_windows_at_every_place():
    windows = random_crop(numbered_pixels(500), 32, generator=seeded())
    assert windows.shape == (500, 2, 32, 32)
    assert_close(windows[:, 1], -windows[:, 0])
    corners = windows[:, 0, 0, 0].long()
    offsets = 48 * torch.arange(32)[:, None] + torch.arange(32)
    assert_close(windows[:, 0].long(), corners[:, None, None] + offsets)
    assert set((corners // 48).tolist()) == set(range(17))
    assert set((corners % 48).tolist()) == set(range(17))


def test_center_crop_is_the_middle():
    window = center_crop(numbered_pixels(1), 32)
    assert window[0, 0, 0, 0] == 48 * 8 + 8
    assert window[0, 0, -1, -1] == 48 * 39 + 39
    assert_close(window[:, 1], -window[:, 0])
    assert center_crop(torch.arange(9).view(1, 1, 3, 3), 2).flatten().tolist() == [0, 1, 3, 4]


# All of them.


@pytest.mark.parametrize(
    "change",
    [
        lambda images, draw: random_crop(images, 5, generator=draw),
        lambda images, draw: color_jitter(images, ColorJitterSettings(True), draw),
    ],
)
def test_the_generator_decides(change):
    images = torch.rand(20, 1, 12, 12)
    draw = seeded(3)
    first = change(images, draw)
    assert not torch.equal(first, change(images, draw))
    assert torch.equal(first, change(images, seeded(3)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_cpu_generator_changes_images_on_a_gpu_alike(dtype):
    images = random_bytes((9, 2, 7, 6), dtype)
    for change, amounts in ((shift, ShiftSettings(2)), (flip, FlipSettings(True))):
        on_gpu = change(images.cuda(), amounts, seeded(1))
        assert on_gpu.is_cuda
        assert torch.equal(on_gpu.cpu(), change(images, amounts, seeded(1)))
    expected = affine(images, AffineSettings(degrees=20), seeded(1))
    on_gpu = affine(images.cuda(), AffineSettings(degrees=20), seeded(1)).cpu()
    tolerance = 1 if dtype == torch.uint8 else 0.01
    assert_close(on_gpu, expected, rtol=0, atol=tolerance)


def test_an_amount_out_of_range_is_refused():
    with refusal("erase: expected between 0 and 3, got 4", ValueError):
        erase(torch.rand(2, 1, 3, 3), EraseSettings(4), seeded())
    with refusal("size: expected between 1 and 3, got 13", ValueError):
        random_crop(torch.rand(2, 1, 3, 3), 13, generator=seeded())
    with refusal("size: expected between 1 and 3, got 0", ValueError):
        center_crop(torch.rand(2, 1, 3, 3), 0)

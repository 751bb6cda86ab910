from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchcaps.evaluation import affine_sweep, transform_images

from ..stubs import PixelReader


def dot(row: int, column: int, size: int = 9) -> Tensor:
    image = torch.zeros(1, 1, size, size)
    image[0, 0, row, column] = 1
    return image


@pytest.mark.parametrize(
    ("options", "row", "column"),
    [
        ({}, 2, 4),
        ({"rotation": 90}, 4, 6),  # the top goes to the right: clockwise
        ({"rotation": 180}, 6, 4),
        ({"shift": (3, 1)}, 3, 7),  # right, down
        ({"shear": 45}, 2, 2),  # two rows above the center go two to the left
        ({"rotation": 90, "shift": (1, 0)}, 4, 7),  # moved after it was turned
        ({"rotation": 90, "shear": 45}, 2, 6),  # turned after it was slanted
    ],
)
def test_a_dot_goes_where_it_should(options, row: int, column: int) -> None:
    moved = transform_images(dot(2, 4), **options)
    assert torch.allclose(moved, dot(row, column), atol=1e-5)


def test_size_is_about_the_center_and_outside_is_black() -> None:
    twice = transform_images(torch.ones(1, 1, 8, 8), scale=50)
    assert torch.allclose(twice[0, 0, 2:6, 2:6], torch.ones(4, 4), atol=1e-5)
    assert twice.sum() == pytest.approx(16, abs=1e-3)
    assert torch.allclose(
        transform_images(dot(2, 4), scale=200)[0, 0, 0, 4], torch.tensor(1.0), atol=1e-5
    )


def test_pictures_that_are_not_square_turn_without_distortion() -> None:
    image = torch.zeros(1, 1, 5, 11)
    image[0, 0, 2, 3:8] = 1  # a horizontal bar of five pixels
    turned = transform_images(image, rotation=90)
    want = torch.zeros(1, 1, 5, 11)
    want[0, 0, :, 5] = 1
    assert torch.allclose(turned, want, atol=1e-5)


def test_a_sweep_at_no_change_is_plain_accuracy() -> None:
    images, labels = torch.rand(20, 1, 1, 4), torch.randint(0, 4, (20,))
    found = affine_sweep(
        PixelReader(4),
        images,
        labels,
        rotation=[0],
        scale=[100],
        shear=[0],
        shift=[0],
        batch_size=7,
    )
    plain = float((images.flatten(1).argmax(dim=1) == labels).double().mean())
    assert found.clean == pytest.approx(plain)
    assert found.chance == 0.25
    for curve in found.curves.values():
        assert curve.accuracy == pytest.approx((plain,))
        assert curve.mean == pytest.approx(plain)


def test_shifts_go_to_all_four_sides() -> None:
    # The brightest pixel is the answer. Moved by one to either side it is another; moved up or down it is lost.
    images = torch.eye(3)[1].view(1, 1, 1, 3)
    found = affine_sweep(PixelReader(3), images, torch.tensor([1]), shift=[0, 1])
    assert found.curves["shift"].accuracy == (1.0, 0.0)
    left = affine_sweep(PixelReader(3), images, torch.tensor([0]), shift=[0, 1])
    # Right: pixel 2. Left: pixel 0. Up and down leave black images, whose first class wins.
    assert left.curves["shift"].accuracy == (0.0, 0.75)


def test_half_drop_is_the_smallest_change_that_is_bad_enough() -> None:
    images = torch.eye(5).view(5, 1, 1, 5)
    found = affine_sweep(
        PixelReader(5), images, torch.arange(5), rotation=[180, 0, 360, 20], scale=[100]
    )
    curve = found.curves["rotation"]
    assert curve.unit == "degrees"
    assert curve.amounts == (180, 0, 360, 20)
    assert curve.accuracy[0] == pytest.approx(0.2)  # only the center stays
    assert curve.half_drop == 180
    assert found.curves["scale"].half_drop is None
    assert list(found.curves) == ["rotation", "scale"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "expected amounts for at least one of rotation, scale, shear, shift, got none"),
        ({"scale": [0]}, "scale: expected at least 0.1, got 0"),
        ({"shear": [90]}, "shear: expected between -89 and 89, got 90"),
    ],
)
def test_arguments_that_do_not_fit(options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        affine_sweep(PixelReader(4), torch.rand(2, 1, 1, 4), torch.tensor([0, 1]), **options)


def test_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="images: expected floating-point values"):
        transform_images(torch.zeros(1, 1, 4, 4, dtype=torch.uint8), rotation=10)

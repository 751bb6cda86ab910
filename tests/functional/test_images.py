"""Images moved by matrices, and standardized ones."""

import pytest
import torch
from torch.testing import assert_close

from torchcaps.errors import ArgumentError
from torchcaps.functional import move_by_matrix, shift_matrices, standardize
from torchcaps.testing import seeded


def locate_brightest(image):
    """(x, y) of the brightest pixel, from the left upper corner."""
    row, column = divmod(int(image.flatten().argmax()), image.shape[-1])
    return column, row


def test_content_that_leaves_the_image_is_gone():
    right = torch.eye(3)[None].clone()
    right[:, 0, 2] = 2 * 2 / 6
    shifted = move_by_matrix(torch.ones(1, 1, 6, 6), right)[0, 0]
    assert shifted[:, :2].abs().max() < 1e-5
    assert_close(shifted[:, 2:], torch.ones(6, 4))


@pytest.mark.parametrize(("height", "width"), [(9, 9), (9, 15), (15, 9)])
def test_a_quarter_turn_takes_the_right_to_the_bottom(height, width):
    """y is downwards; the unit is the same along both axes."""
    quarter = torch.tensor([[[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]])
    row = height // 2
    column = width // 2
    image = torch.zeros(1, 1, height, width)
    image[0, 0, row, column + 3] = 1
    turned = move_by_matrix(image, quarter)[0]
    assert locate_brightest(turned) == (column, row + 3)


def test_shifts_are_in_pixels_to_the_right_and_downwards():
    images = torch.zeros(2, 1, 8, 14)
    images[:, :, 3, 6] = 1
    shifts = torch.tensor([[3.0, -2.0], [0.0, 4.0]])
    shifted = move_by_matrix(images, shift_matrices(shifts, (8, 14)))
    assert locate_brightest(shifted[0]) == (9, 1)
    assert locate_brightest(shifted[1]) == (6, 7)
    assert_close(shifted.sum(dim=(1, 2, 3)), torch.ones(2))


def test_wrong_arguments():
    with pytest.raises(
        ArgumentError, match=r"matrices: expected \[batch=2, rows=3, columns=3\], got"
    ):
        move_by_matrix(torch.zeros(2, 1, 4, 4), torch.eye(3)[None])
    message = r"images: expected \[batch, channels, height, width\], got \[4, 4\]"
    with pytest.raises(ArgumentError, match=message):
        move_by_matrix(torch.zeros(4, 4), torch.eye(3)[None])
    with pytest.raises(ArgumentError, match=r"shifts: expected \[batch, shift=2\], got \[2\]"):
        shift_matrices(torch.zeros(2), (4, 4))


def test_an_image_is_standardized_over_all_channels_together():
    scale = torch.tensor([1.0, 0.2]).view(1, 2, 1, 1)
    images = standardize(scale * torch.rand(5, 2, 8, 8, generator=seeded()))
    assert_close(
        images.mean((1, 2, 3)),
        torch.zeros(5),
        atol=1e-6,
        rtol=0,
    )
    assert_close(images.var((1, 2, 3), correction=0), torch.ones(5))
    assert images[:, 0].mean() > 0 > images[:, 1].mean()


def test_an_image_of_one_gray_becomes_zero_with_a_finite_gradient():
    images = torch.full((2, 1, 4, 4), 0.3, requires_grad=True)
    standardized = standardize(images)
    assert standardized.abs().max() < 1e-4
    standardized.square().sum().backward()
    assert images.grad.isfinite().all()


def test_half_precision_is_computed_in_float32():
    images = torch.rand(2, 1, 8, 8).bfloat16()
    assert_close(standardize(images), standardize(images.float()))

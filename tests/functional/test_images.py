"""Images moved by matrices, and standardized ones."""

import pytest
import torch

from torchcaps.functional import move_by_matrix, shift_matrices, standardize


def brightest(image):
    """(x, y) of the brightest pixel, from the left upper corner."""
    row, column = divmod(int(image.flatten().argmax()), image.shape[-1])
    return column, row


def test_what_leaves_the_picture_is_gone():
    images = torch.ones(1, 1, 6, 6)
    right = torch.eye(3)[None].clone()
    right[:, 0, 2] = 2 * 2 / 6
    moved = move_by_matrix(images, right)[0, 0]
    assert moved[:, :2].abs().max() < 1e-5
    torch.testing.assert_close(moved[:, 2:], torch.ones(6, 4))


@pytest.mark.parametrize("size", [(9, 9), (9, 15), (15, 9)])
def test_a_matrix_moves_content_from_where_it_was_to_where_it_says(size):
    """A quarter turn takes the right to the bottom, for y is downwards; the unit is the same along both axes."""
    quarter = torch.tensor([[[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]])
    image = torch.zeros(1, 1, *size)
    middle_row, middle_column = size[0] // 2, size[1] // 2
    image[0, 0, middle_row, middle_column + 3] = 1
    assert brightest(move_by_matrix(image, quarter)[0]) == (middle_column, middle_row + 3)


def test_shifts_are_in_pixels_to_the_right_and_downwards():
    images = torch.zeros(2, 1, 8, 14)
    images[:, :, 3, 6] = 1
    moved = move_by_matrix(images, shift_matrices(torch.tensor([[3.0, -2.0], [0.0, 4.0]]), (8, 14)))
    assert [brightest(image) for image in moved] == [(9, 1), (6, 7)]
    torch.testing.assert_close(moved.sum(dim=(1, 2, 3)), torch.ones(2))


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"matrices: expected \[batch=2, rows=3, columns=3\], got"):
        move_by_matrix(torch.zeros(2, 1, 4, 4), torch.eye(3)[None])
    with pytest.raises(
        ValueError, match=r"images: expected \[batch, channels, height, width\], got \[4, 4\]"
    ):
        move_by_matrix(torch.zeros(4, 4), torch.eye(3)[None])
    with pytest.raises(ValueError, match=r"shifts: expected \[batch, shift=2\], got \[2\]"):
        shift_matrices(torch.zeros(2), (4, 4))


def test_standardized_over_both_eyes():
    images = torch.rand(5, 2, 8, 8, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [1.0, 0.2]
    ).view(1, 2, 1, 1)
    found = standardize(images)
    torch.testing.assert_close(found.mean((1, 2, 3)), torch.zeros(5), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.var((1, 2, 3), correction=0), torch.ones(5))
    assert found[:, 0].mean() > 0 > found[:, 1].mean()  # one scale for both
    assert standardize(torch.full((1, 1, 4, 4), 0.3)).abs().max() < 1e-4


def test_the_gradient_is_finite_for_an_image_of_one_gray():
    images = torch.full((2, 1, 4, 4), 0.3, requires_grad=True)
    standardize(images).square().sum().backward()
    assert images.grad.isfinite().all()


def test_half_precision_is_computed_in_full():
    images = torch.rand(2, 1, 8, 8).bfloat16()
    torch.testing.assert_close(standardize(images), standardize(images.float()))

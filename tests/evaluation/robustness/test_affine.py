import pytest
import torch

from torchcaps.errors import ArgumentError
from torchcaps.evaluation import affine_sweep, transform_images

from ..stubs import PixelReader, share


def dot(row, column, size=9):
    """A black image with one white pixel."""
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
def test_a_dot_goes_where_it_should(options, row, column):
    assert torch.allclose(transform_images(dot(2, 4), **options), dot(row, column), atol=1e-5)


def test_size_is_about_the_center_and_outside_is_black():
    half = transform_images(torch.ones(1, 1, 8, 8), scale=50)
    assert torch.allclose(half[0, 0, 2:6, 2:6], torch.ones(4, 4), atol=1e-5)
    assert half.sum() == pytest.approx(16, abs=1e-3)
    assert float(transform_images(dot(2, 4), scale=200)[0, 0, 0, 4]) == pytest.approx(1, abs=1e-5)


def test_pictures_that_are_not_square_turn_without_distortion():
    image = torch.zeros(1, 1, 5, 11)
    image[0, 0, 2, 3:8] = 1  # a horizontal bar of five pixels
    expected = torch.zeros(1, 1, 5, 11)
    expected[0, 0, :, 5] = 1
    assert torch.allclose(transform_images(image, rotation=90), expected, atol=1e-5)


def test_a_sweep_at_no_change_is_plain_accuracy():
    images = torch.rand(20, 1, 1, 4)
    labels = torch.randint(0, 4, (20,))
    amounts = {"rotation": [0], "scale": [100], "shear": [0], "shift": [0]}
    sweep = affine_sweep(PixelReader(4), images, labels, **amounts)
    accuracy = share(images.flatten(1).argmax(dim=1) == labels)
    assert sweep.clean == pytest.approx(accuracy)
    assert sweep.chance == 0.25
    assert list(sweep.curves) == list(amounts)
    for curve in sweep.curves.values():
        assert curve.accuracy == pytest.approx((accuracy,))


@pytest.mark.parametrize(("label", "accuracy"), [(1, (1.0, 0.0)), (0, (0.0, 0.75))])
def test_shifts_go_to_all_four_sides(label, accuracy):
    # The middle pixel is white, and the answer is the brightest pixel. Right: pixel 2. Left:
    # pixel 0. Up and down leave black images, whose first class wins.
    images = torch.eye(3)[1].view(1, 1, 1, 3)
    sweep = affine_sweep(PixelReader(3), images, torch.tensor([label]), shift=[0, 1])
    assert sweep.curves["shift"].accuracy == accuracy


def test_curves_keep_the_order_of_their_amounts():
    images = torch.eye(5).view(5, 1, 1, 5)
    sweep = affine_sweep(PixelReader(5), images, torch.arange(5), rotation=[180, 0, 360])
    curve = sweep.curves["rotation"]
    assert (curve.unit, curve.amounts) == ("degrees", (180, 0, 360))
    assert curve.accuracy == pytest.approx((0.2, 1.0, 1.0))  # only the center stays


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "number of amounts: expected at least 1"),
        ({"scale": [0]}, "scale: expected at least 0.1"),
        ({"shear": [90]}, "shear: expected between -89 and 89"),
    ],
)
def test_arguments_that_do_not_fit(options, message):
    with pytest.raises(ArgumentError, match=message):
        affine_sweep(PixelReader(4), torch.rand(2, 1, 1, 4), torch.tensor([0, 1]), **options)

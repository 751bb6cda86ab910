"""Matrix poses: votes, coordinate addition, centers of receptive fields."""

import pytest
import torch
from torch.testing import assert_close

from torchcaps.errors import ArgumentError
from torchcaps.functional import coordinate_addition, matrix_votes, receptive_centers
from torchcaps.functional.geometry import Slide, receptive_field
from torchcaps.testing import seeded

LAYERS = [(5, 2), (3, 2), (3, 1)]


def test_poses_need_not_be_square():
    pose = torch.randn(2, 5, 6, generator=seeded())
    weight = torch.randn(5, 4, 3, 7, generator=seeded(1))
    votes = matrix_votes(pose, weight)
    expected = pose[1, 2].view(2, 3) @ weight[2, 3]
    assert_close(votes[1, 2, 3].view(2, 7), expected)


def test_poses_that_do_not_fit():
    weight = torch.rand(5, 3, 4, 4)
    message = r"pose: expected \[\*batch, children=5, in_dim=16\], got \[\*batch=2, children=4"
    with pytest.raises(ArgumentError, match=message):
        matrix_votes(torch.rand(2, 4, 16), weight)
    with pytest.raises(ArgumentError, match="pose: expected .*in_dim=12"):
        matrix_votes(torch.rand(2, 5, 15), weight)


def test_coordinates_are_added_to_the_right_hand_column():
    votes = torch.randn(2, 3, 5, 6, 4, 16, generator=seeded())
    rows = torch.arange(3.0)
    columns = 10 + torch.arange(5.0)
    added = coordinate_addition(votes, rows, columns) - votes
    expected = torch.zeros(4, 4)
    expected[0, 3] = 2.0
    expected[1, 3] = 14.0
    assert_close(
        added[1, 2, 4, 5, 3].view(4, 4),
        expected,
        atol=1e-5,
        rtol=0,
    )
    first = added[:1, :, :, :1, :1].expand_as(added)  # equal for samples, children and parents
    assert_close(added, first, atol=1e-5, rtol=0)


def test_coordinates_are_added_to_other_elements():
    votes = torch.zeros(2, 1, 6, 4, 16)
    rows = torch.ones(2)
    columns = torch.ones(1)
    added = coordinate_addition(votes, rows, columns, indices=(0, 1))
    assert added[1, 0, 2, 3].nonzero().flatten().tolist() == [0, 1]
    assert coordinate_addition(votes, rows, columns, indices=(5, 5))[1, 0, 2, 3, 5] == 2
    with pytest.raises(ArgumentError, match="indices: expected between 0 and 15, got 16"):
        coordinate_addition(votes, rows, columns, indices=(3, 16))
    with pytest.raises(ArgumentError, match=r"columns: expected \[width=1\], got \[width=2\]"):
        coordinate_addition(votes, rows, rows)


def test_receptive_centers():
    assert receptive_centers(32, LAYERS) == [-8.0, -4.0, 0.0, 4.0]
    assert receptive_centers(4, []) == [-2.0, -1.0, 0.0, 1.0]
    assert receptive_centers(28, [(5, 2)]) == list(range(-12, 12, 2))
    with pytest.raises(ArgumentError, match="size of the map: expected at least 3, got 2"):
        receptive_centers(8, [(5, 2), (3, 1)])


def test_centers_are_where_a_pixel_moves_the_output():
    """The gradient of one output of averaging layers is symmetrical about its center."""
    image = torch.zeros(1, 1, 32, requires_grad=True)
    x = image
    for kernel, stride in LAYERS:
        x = torch.nn.functional.avg_pool1d(x, kernel, stride)
    pixels = torch.arange(32) - 16
    for k, center in enumerate(receptive_centers(32, LAYERS)):
        (weight,) = torch.autograd.grad(x[0, 0, k], image, retain_graph=True)
        assert (weight[0, 0] * pixels).sum().item() == pytest.approx(center, abs=1e-4)


def test_padding_moves_the_first_center_and_nothing_else():
    padded = Slide((3, 5), (2, 1), (1, 2))
    assert receptive_field([padded], axis=0) == (0.0, 2, 3)
    assert receptive_field([padded], axis=1) == (0.0, 1, 5)
    assert receptive_field([Slide((3, 5), (2, 1))], axis=0) == (1.0, 2, 3)

"""Losses: the squares, the sums, the means, and known values."""

import pytest
import torch
from torch.testing import assert_close

from torchcaps.errors import ArgumentError
from torchcaps.functional import margin_loss, reconstruction_loss, spread_loss
from torchcaps.tasks.collapse import plateau


@pytest.mark.parametrize(("classes", "expected"), [(10, 0.5236), (2, 0.2133)])
def test_the_plateau_is_the_least_loss_of_equal_lengths(classes, expected):
    lengths = torch.linspace(0, 1, 2001)
    labels = torch.tensor([0])
    losses = [margin_loss(length.expand(1, classes), labels).item() for length in lengths]
    assert min(losses) == pytest.approx(expected, abs=1e-4)
    assert plateau(classes) == pytest.approx(expected, abs=1e-4)


def test_margin_by_hand():
    activation = torch.tensor([[0.5, 0.3, 0.05], [0.95, 0.2, 0.1]])
    first = 0.4**2 + 0.5 * 0.2**2
    second = 0.5 * 0.85**2 + 0.7**2
    loss = margin_loss(activation, torch.tensor([0, 1]))
    assert loss.item() == pytest.approx((first + second) / 2, rel=1e-5)


def test_margin_of_two_labels():
    loss = margin_loss(torch.tensor([[0.9, 0.5, 0.1]]), torch.tensor([[1, 1, 0]]))
    assert loss.item() == pytest.approx(0.16, rel=1e-5)


def test_margin_of_shares_is_between_that_of_both_classes():
    activation = torch.tensor([[0.7, 0.4]], dtype=torch.float64, requires_grad=True)
    first, second = (margin_loss(activation, torch.tensor([label])) for label in (0, 1))
    mixed = margin_loss(activation, torch.tensor([[0.25, 0.75]], dtype=torch.float64))
    assert_close(mixed, 0.25 * first + 0.75 * second)
    total = margin_loss(activation, torch.tensor([[0.0, 1.0]], dtype=torch.float64))
    assert_close(total, second)


def test_margins_are_arguments():
    activation = torch.tensor([[0.4, 0.4]])
    loss = margin_loss(
        activation,
        torch.tensor([0]),
        present=0.5,
        absent=0.2,
        down_weight=2.0,
    )
    assert loss.item() == pytest.approx(0.01 + 2 * 0.04, rel=1e-5)


@pytest.mark.parametrize("present", [0.05, 0.95])
@pytest.mark.parametrize("labels", [torch.tensor([0, 2]), torch.tensor([[1, 1, 0], [0, 1, 0]])])
def test_a_training_with_saturated_capsules_is_warned(labels, present):
    lengths = torch.full((2, 3), 0.95)
    lengths[:, 1] = present if labels.dim() == 2 else 0.95
    lengths.requires_grad_()
    with pytest.warns(UserWarning, match="margin_loss: .* saturated .*create_schedule"):
        loss = margin_loss(lengths, labels)
    loss.backward()
    assert lengths.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("lengths", "labels"),
    [
        ([[0.95, 0.8, 0.9]], [2]),  # not yet all
        ([[1.0, 1.0, 1.0], [1.0, 0.9, 1.0]], [[1, 1, 1], [1, 1, 1]]),  # each class is present
        ([[1.0] * 19 + [0.1]], [[1] * 19 + [0]]),  # the one that is absent is short
    ],
)
def test_long_capsules_of_present_classes_are_no_reason_to_warn(lengths, labels):
    margin_loss(torch.tensor(lengths, requires_grad=True), torch.tensor(labels))


def test_evaluation_transforms_and_compilation_do_not_warn():
    lengths = torch.full((2, 3), 0.95)
    labels = torch.tensor([0, 1])
    margin_loss(lengths, labels)
    row = torch.func.vmap(torch.func.grad(lambda x, y: margin_loss(x[None], y[None])))
    row(lengths, labels)
    compiled = torch.compile(margin_loss, backend="eager", fullgraph=True)
    compiled(lengths.requires_grad_(), labels)


def test_spread_by_hand():
    activation = torch.tensor([[0.6, 0.5, 0.1], [0.2, 0.9, 0.8]])
    loss = spread_loss(activation, torch.tensor([0, 1]), 0.2)
    assert loss.item() == pytest.approx((0.2 - 0.1) ** 2, rel=1e-4)
    assert spread_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), 0.9).item() == 0


def test_reconstruction_is_a_sum_over_pixels():
    """0.0005 times the sum is 0.392 times the mean on 28x28 images."""
    reconstruction = torch.rand(5, 1, 28, 28)
    images = torch.rand(5, 1, 28, 28)
    mean = torch.nn.functional.mse_loss(reconstruction, images)
    loss = reconstruction_loss(reconstruction, images)
    assert_close(0.0005 * loss, 0.392 * mean)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    activation = torch.rand(4, 3).to(dtype)
    labels = torch.tensor([0, 1, 2, 0])
    assert margin_loss(activation, labels).dtype == torch.float32
    assert spread_loss(activation, labels, 0.5).dtype == torch.float32


def test_shapes_that_do_not_fit(request):
    if request.config.getoption("--typecheck"):
        pytest.skip("with --typecheck the annotations refuse these before the function can")
    with pytest.raises(ArgumentError, match=r"labels: expected \[batch=4\], got \[batch=3\]"):
        margin_loss(torch.rand(4, 3), torch.tensor([0, 1, 2]))
    with pytest.raises(ArgumentError, match="reconstruction: expected the images' shape"):
        reconstruction_loss(torch.rand(2, 1, 4, 4), torch.rand(2, 3, 4, 4))

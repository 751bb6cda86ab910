"""Losses on class-capsule activations and on reconstructions.

Activations are lengths in [0, 1], not logits.
"""

import warnings

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor

from torchcaps.errors import ArgumentError, check_shape
from torchcaps.functional.squash import full_precision, is_transforming

SATURATED = 0.9  # the mean length: no network that tells classes apart reaches it

Activations = Float[Tensor, "batch classes"]
Labels = Int64[Tensor, " batch"]
Loss = Float[Tensor, ""]


def margin_loss(
    activation: Activations,
    labels: Labels | Tensor,
    present: float = 0.9,
    absent: float = 0.1,
    down_weight: float = 0.5,
) -> Loss:
    """Margin loss: `sum_k T_k max(0, m+ - |v_k|)^2 + lambda (1 - T_k) max(0, |v_k| - m-)^2`.

    |v_k| is the length of the capsule of class k, and T_k is 1 if the class is present, else 0, or
    a share between them. It warns where absent classes have a mean length above 0.9 in a training
    on a CPU: such capsules hardly learn.

    Source: arXiv 1710.09829, equation 4. Known values with ten classes: 0.81 when every length is 0
    (dead), 3.645 when every length is 1 (saturated), 0.5236 for the best constant length.

    Args:
        activation: `[batch, classes]` lengths in [0, 1].
        labels: `[batch]` class indices; or T, `[batch, classes]`, with 1 for each present class. Of
            floating point it may have shares, as of mixed images.
        present: m+, below which the length of a present class is penalized.
        absent: m-, above which the length of an absent class is penalized.
        down_weight: lambda, the weight of absent classes.

    Returns:
        The sum over classes, mean over the batch.

    Raises:
        ArgumentError: shapes that do not fit.
    """
    if _is_saturated(activation, labels):
        warnings.warn(
            "margin_loss: expected short capsules for absent classes, got a mean length above "
            f"{SATURATED}: they are saturated and hardly learn; begin with a lower learning rate, "
            "as torchcaps.training.defaults.create_schedule does, or clip the gradient",
            stacklevel=2,
        )
    return margin_penalty(activation, labels, present, absent, down_weight)


def margin_penalty(
    activation: Activations,
    labels: Labels | Tensor,
    present: float = 0.9,
    absent: float = 0.1,
    down_weight: float = 0.5,
) -> Loss:
    """Margin loss without a warning, for trainings that restart saturated networks themselves.

    Arguments, result and errors are those of `margin_loss`.
    """
    lengths = full_precision(activation)
    targets = _make_targets(lengths, labels)  # T
    if targets.is_floating_point():
        shortfall = (present - lengths).relu().square()
        excess = (lengths - absent).relu().square()
        loss = targets * shortfall + down_weight * (1 - targets) * excess
        return loss.sum(dim=1).mean()
    limits = torch.full_like(lengths, absent).masked_fill_(targets, present)
    weights = torch.full_like(lengths, down_weight).masked_fill_(targets, 1.0)
    counts = (lengths < limits) == targets  # on one side of its limit only
    return (weights * counts * F.mse_loss(lengths, limits, reduction="none")).sum(dim=1).mean()


def _is_saturated(activation: Tensor, labels: Tensor) -> bool:
    """Whether absent classes of a training on a CPU, step by step, have lengths of nearly 1."""
    if (
        not activation.requires_grad
        or type(activation) is not Tensor  # fake, or of a trace
        or activation.device.type != "cpu"  # a GPU would have to be waited for
        or torch.compiler.is_compiling()
        or is_transforming()
    ):
        return False
    lengths = activation.detach()
    absent = 1 - _make_targets(lengths, labels).to(lengths.dtype)
    return bool((lengths * absent).sum() > SATURATED * absent.sum())


def spread_loss(activation: Activations, labels: Labels, margin: float) -> Loss:
    """Spread loss: `sum_{k != t} max(0, margin - (a_t - a_k))^2`, t the right class.

    Source: Hinton, Sabour, Frosst, "Matrix capsules with EM routing", ICLR 2018, equation 3.

    Args:
        activation: `[batch, classes]` in [0, 1].
        labels: `[batch]` class indices, t.
        margin: between the activation of the right class and each other one; the paper raises it
            from 0.2 to 0.9.

    Returns:
        The sum over the wrong classes, mean over the batch.

    Raises:
        ArgumentError: shapes that do not fit.
    """
    activation = full_precision(activation)
    check_shape("labels", labels, ("batch",), batch=activation.shape[0])
    index = labels.unsqueeze(1)
    right_activation = activation.gather(1, index)  # a_t
    gaps = (margin - (right_activation - activation)).relu()
    squares = gaps.square().scatter(1, index, 0.0)  # 0 for the right class
    return squares.sum(dim=1).mean()


def reconstruction_loss(
    reconstruction: Float[Tensor, " batch *image"], images: Float[Tensor, " batch *image"]
) -> Loss:
    """Squared error of a reconstruction.

    Source: arXiv 1710.09829, section 4.1. The paper adds it with weight 0.0005; on 28x28 images
    that is 0.392 times the mean squared error.

    Args:
        reconstruction: what a decoder returns, `[batch, ...]`.
        images: of the same shape.

    Returns:
        The sum over pixels and channels, mean over the batch.

    Raises:
        ArgumentError: shapes that differ.
    """
    if reconstruction.shape != images.shape:
        raise ArgumentError(
            "reconstruction",
            f"expected the images' shape {list(images.shape)}, got {list(reconstruction.shape)}",
        )

    squares = F.mse_loss(full_precision(reconstruction), full_precision(images), reduction="none")
    return squares.flatten(1).sum(dim=1).mean()


def _make_targets(lengths: Tensor, labels: Tensor) -> Tensor:
    """Labels in the shape of `lengths`: shares of classes, or booleans."""
    batch, classes = lengths.shape
    if labels.dim() == 2:
        check_shape("labels", labels, ("batch", "classes"), batch=batch, classes=classes)
        return labels.to(lengths.dtype) if labels.is_floating_point() else labels.bool()
    check_shape("labels", labels, ("batch",), batch=batch)
    return torch.zeros_like(lengths, dtype=torch.bool).scatter(1, labels.unsqueeze(1), True)

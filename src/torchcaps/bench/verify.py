"""Nothing is timed before it is right: value and gradients of a variant against the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from torchcaps.bench.baselines import VARIANTS
from torchcaps.errors import TorchcapsError
from torchcaps.nn import CapsuleLinear
from torchcaps.types import Capsules

TOLERANCE = 1e-4  # of the largest magnitude, in float32: three passes amplify a rounding of 6e-8 by about 1e2


class WrongResultError(TorchcapsError):
    """A variant computes something else than the reference."""


def outcome(layer: nn.Module, pose: Tensor, upstream: Tensor) -> list[Tensor]:
    """Poses, lengths, gradient of the children's poses."""
    pose = pose.detach().requires_grad_()
    capsules = layer(Capsules(pose, pose.norm(dim=-1)))
    ((capsules.pose * upstream).sum() + capsules.activation.sum()).backward()
    assert pose.grad is not None
    return [capsules.pose.detach(), capsules.activation.detach(), pose.grad]


def verify(names: Sequence[str], layer: CapsuleLinear, batch: int = 4) -> dict[str, float]:
    """Largest relative error of each exact variant among `names`.

    Raises:
        WrongResultError: if one exceeds the tolerance.
    """
    generator = torch.Generator().manual_seed(0)
    pose = torch.randn(batch, layer.in_capsules, layer.in_dim, generator=generator).to(layer.weight.device) * 0.1
    upstream = torch.randn(batch, layer.out_capsules, layer.out_dim, generator=generator).to(layer.weight.device)
    truth = outcome(VARIANTS["reference"].build(layer), pose, upstream)
    errors = {}
    for name in names:
        if VARIANTS[name].exact:
            errors[name] = largest_error(outcome(VARIANTS[name].build(layer), pose, upstream), truth)
    return checked(errors)


def largest_error(found: Sequence[Tensor], truth: Sequence[Tensor]) -> float:
    """Largest difference of any pair, over the largest magnitude of its truth."""
    return max(((f - t).abs().max() / t.abs().max()).item() for f, t in zip(found, truth, strict=True))


def checked(errors: Mapping[str, float]) -> dict[str, float]:
    """These errors.

    Raises:
        WrongResultError: if one exceeds the tolerance, or is NaN.
    """
    for name, error in errors.items():
        if not error <= TOLERANCE:
            raise WrongResultError(f"{name}: differs from the reference by {error:.1e}; nothing was timed")
    return dict(errors)

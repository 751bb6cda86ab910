"""Nothing is timed before it is right: value and gradients of a variant against the reference."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.baselines import VARIANTS
from torchcaps.nn import CapsuleLinear
from torchcaps.types import Capsules

TOLERANCE = 1e-4  # of the largest magnitude, in float32: three passes amplify a rounding of 6e-8 by about 1e2


def outcome(layer: nn.Module, pose: Tensor, upstream: Tensor) -> list[Tensor]:
    """Poses, lengths, gradient of the children's poses."""
    pose = pose.detach().requires_grad_()
    capsules = layer(Capsules(pose, pose.norm(dim=-1)))
    ((capsules.pose * upstream).sum() + capsules.activation.sum()).backward()
    return [capsules.pose.detach(), capsules.activation.detach(), pose.grad]


def verify(names: list[str], layer: CapsuleLinear, batch: int = 4) -> dict[str, float]:
    """Largest relative error of each exact variant among `names`.

    Raises:
        AssertionError: if one exceeds the tolerance.
    """
    pose = torch.randn(batch, layer.in_capsules, layer.in_dim) * 0.1
    upstream = torch.randn(batch, layer.out_capsules, layer.out_dim)
    truth = outcome(VARIANTS["reference"].build(layer), pose, upstream)
    errors = {}
    for name in names:
        if VARIANTS[name].exact:
            got = outcome(VARIANTS[name].build(layer), pose, upstream)
            errors[name] = max(((g - t).abs().max() / t.abs().max()).item() for g, t in zip(got, truth, strict=True))
            if not errors[name] <= TOLERANCE:
                raise AssertionError(f"{name}: differs from the reference by {errors[name]:.1e}; nothing was timed")
    return errors

"""What the library is measured against: class-capsule layers that compute the same by other means.

Every baseline but the limit holds the weights of the `CapsuleLinear` that it replaces, and equals
its reference in value and gradient: `verify` checks it before anything is timed. Letters of shapes:
b batch, i children, j parents, d dimensions of a parent, k dimensions of a child.
"""

import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from shutil import which
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps import Capsules, ops, set_impl
from torchcaps.functional import squash_with_length
from torchcaps.nn import CapsuleLinear, DynamicRouting

# Of the largest magnitude, in float32: three passes amplify a rounding of 6e-8 by about 1e2.
TOLERANCE = 1e-4
COMPILERS = ("c++", "g++", "clang++", "cl")


class TextbookCapsules(nn.Module):
    """The eager code of tutorials: broadcast products, and logits as large as the votes.

    The softmax is over parents, as in the paper; over children, a common error, it costs the same.
    """

    def __init__(self, layer: CapsuleLinear) -> None:
        super().__init__()
        self.iterations = iterations_of(layer)
        weight = layer.weight.detach().permute(1, 0, 3, 2)  # [j, i, k, d]
        self.route_weights = nn.Parameter(weight.contiguous())
        self.bias = deepcopy(layer.bias)

    def forward(self, children: Capsules) -> Capsules:
        u = children.pose
        u_hat = u[None, :, :, None, :] @ self.route_weights[:, None, :, :, :]  # [j, b, i, 1, d]
        logits = torch.zeros_like(u_hat)
        for iteration in range(self.iterations):
            c = logits.softmax(dim=0)
            s = (c * u_hat).sum(dim=2, keepdim=True)  # [j, b, 1, 1, d]
            if self.bias is not None:
                s = s + self.bias[:, None, None, None, :]
            v = self.squash(s)
            if iteration < self.iterations - 1:
                logits = logits + (u_hat * v).sum(dim=-1, keepdim=True)
        pose = v.squeeze(3).squeeze(2).transpose(0, 1)
        return Capsules(pose, pose.square().sum(dim=-1).sqrt())

    @staticmethod
    def squash(s: Tensor) -> Tensor:
        """Equation 1 of the paper, without care for zero."""
        squared_norm = s.square().sum(dim=-1, keepdim=True)
        return squared_norm / (1 + squared_norm) * s / squared_norm.sqrt()


class EinsumCapsules(nn.Module):
    """The best public eager code: stored votes, logits `[b, i, j]`, and every sum an einsum."""

    def __init__(self, layer: CapsuleLinear) -> None:
        super().__init__()
        self.iterations = iterations_of(layer)
        self.weight = deepcopy(layer.weight)
        self.bias = deepcopy(layer.bias)

    def forward(self, children: Capsules) -> Capsules:
        u_hat = torch.einsum("bik,ijdk->bijd", children.pose, self.weight)
        logits = u_hat.new_zeros(u_hat.shape[:3])
        for iteration in range(self.iterations):
            s = torch.einsum("bij,bijd->bjd", logits.softmax(dim=-1), u_hat)
            if self.bias is not None:
                s = s + self.bias
            v, length = squash_with_length(s)
            if iteration < self.iterations - 1:
                logits = logits + torch.einsum("bijd,bjd->bij", u_hat, v.to(u_hat.dtype))
        return Capsules(v, length)


class LinearLimit(nn.Module):
    """A plain linear layer with as many weights, then squash: the limit of what routing costs."""

    def __init__(self, layer: CapsuleLinear) -> None:
        super().__init__()
        self.sizes = (layer.out_capsules, layer.out_dim)
        self.linear = nn.Linear(
            layer.in_capsules * layer.in_dim,
            layer.out_capsules * layer.out_dim,
            bias=layer.bias is not None,
        )

    def forward(self, children: Capsules) -> Capsules:
        s = self.linear(children.pose.flatten(1)).unflatten(1, self.sizes)
        return squash_with_length(s)


class Variant(NamedTuple):
    """A class-capsule layer that takes the place of another.

    Attributes:
        build: makes it of the layer that it replaces.
        exact: whether it computes the same.
    """

    build: Callable[[CapsuleLinear], nn.Module]
    exact: bool = True


def library(impl: ops.Impl, layer: CapsuleLinear) -> nn.Module:
    """The library's own layer with a fixed implementation."""
    copy = deepcopy(layer)
    set_impl(copy, impl)
    return copy


def compiled(layer: CapsuleLinear) -> nn.Module:
    """The reference under `torch.compile`."""
    module = library("reference", layer)
    module.compile()
    return module


VARIANTS = {
    "limit": Variant(LinearLimit, exact=False),
    "auto": Variant(partial(library, "auto")),
    "blocked": Variant(partial(library, "blocked")),
    "bmm": Variant(partial(library, "bmm")),
    "triton": Variant(partial(library, "triton")),
    "reference": Variant(partial(library, "reference")),
    "einsum": Variant(EinsumCapsules),
    "compiled": Variant(compiled),
    "textbook": Variant(TextbookCapsules),
}


def usable(layer: CapsuleLinear) -> list[str]:
    """The variants that can take the place of a layer on this machine; prints why others cannot."""
    votes = layer.make_votes(layer.weight.new_zeros(1, layer.in_capsules, layer.in_dim))
    reasons = {}
    for name in set(ops.IMPLS) & set(VARIANTS):
        try:
            ops.choose("dynamic_routing", votes, impl=name)
        except ValueError as error:
            reasons[name] = str(error)
    if not any(map(which, COMPILERS)):
        reasons["compiled"] = f"torch.compile needs one of {', '.join(COMPILERS)}"
    for name, reason in reasons.items():
        print(f"left out: {name} ({reason})", file=sys.stderr)
    return [name for name in VARIANTS if name not in reasons]


def iterations_of(layer: CapsuleLinear) -> int:
    """Iterations of a layer's dynamic routing.

    Raises ValueError for another routing, or one with options that the baselines do not have.
    """
    router = layer.router
    if not isinstance(router, DynamicRouting) or router.leaky or router.detach:
        raise ValueError(f"routing: expected plain dynamic routing to compare with, got {router}")
    return router.iterations


class WrongResultError(ValueError):
    """A variant computes something else than the reference."""


def verify(names: Sequence[str], layer: CapsuleLinear, batch: int = 4) -> dict[str, float]:
    """Compare the exact variants among these with the reference of a layer.

    Returns:
        For each, the largest difference of an output or gradient over its largest magnitude.

    Raises:
        WrongResultError: for one beyond the tolerance, or NaN.
    """
    generator = torch.Generator().manual_seed(0)
    pose = 0.1 * torch.randn(batch, layer.in_capsules, layer.in_dim, generator=generator)
    upstream = torch.randn(batch, layer.out_capsules, layer.out_dim, generator=generator)
    expected = _outputs(VARIANTS["reference"].build(layer), pose, upstream)
    errors = {}
    for name in names:
        if VARIANTS[name].exact:
            outputs = _outputs(VARIANTS[name].build(layer), pose, upstream)
            pairs = zip(outputs, expected, strict=True)
            error = max(((a - b).abs().max() / b.abs().max()).item() for a, b in pairs)
            if not error <= TOLERANCE:
                raise WrongResultError(
                    f"{name}: differs from the reference by {error:.1e}; nothing was timed"
                )
            errors[name] = error
    return errors


def _outputs(layer: nn.Module, pose: Tensor, upstream: Tensor) -> list[Tensor]:
    """Poses and lengths of the parents, and gradient of the children's poses.

    Args:
        layer: of class capsules.
        pose: of the children, `[b, i, k]`.
        upstream: gradient of the parents' poses, `[b, j, d]`; that of their lengths is one.
    """
    pose = pose.detach().requires_grad_()
    parents = layer(Capsules(pose, pose.norm(dim=-1)))
    ((parents.pose * upstream).sum() + parents.activation.sum()).backward()
    assert pose.grad is not None
    return [parents.pose.detach(), parents.activation.detach(), pose.grad]

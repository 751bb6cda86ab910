"""What the library is measured against: class-capsule layers that compute the same thing by other means.

Every baseline but the limit holds the weights of the `CapsuleLinear` that it replaces and equals its reference in value
and gradient (`verify` sees to it before anything is timed), so a table shows means and nothing else.
Letters: b batch, i children, j parents, d dimensions of a parent, k dimensions of a child.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from shutil import which
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchcaps import ops
from torchcaps.bench.timing import Log, silent
from torchcaps.errors import ArgumentError, TorchcapsError, check_known
from torchcaps.functional import squash_with_length
from torchcaps.nn import CapsuleLinear, set_impl
from torchcaps.nn.routers import DynamicRouting
from torchcaps.types import Capsules

TOLERANCE = 1e-4  # of the largest magnitude, in float32: three passes amplify a rounding of 6e-8 by about 1e2
COMPILERS = ("c++", "g++", "clang++", "cl")


class TextbookCapsules(nn.Module):
    """The eager code that tutorials copy from one another: broadcast products, and logits as large as the votes. The
    softmax is over parents, as in the paper; a copy with the usual slip (over children) costs the same."""

    def __init__(self, layer: CapsuleLinear) -> None:
        super().__init__()
        self.iterations = iterations_of(layer)
        self.route_weights = nn.Parameter(
            layer.weight.detach().permute(1, 0, 3, 2).contiguous()
        )  # [j, i, k, d]
        self.bias = deepcopy(layer.bias)

    def forward(self, children: Capsules) -> Capsules:
        x = children.pose
        priors = x[None, :, :, None, :] @ self.route_weights[:, None, :, :, :]  # [j, b, i, 1, d]
        logits = torch.zeros_like(priors)
        for step in range(self.iterations):
            probabilities = logits.softmax(dim=0)
            s = (probabilities * priors).sum(dim=2, keepdim=True)  # [j, b, 1, 1, d]
            outputs = self.squash(s if self.bias is None else s + self.bias[:, None, None, None, :])
            if step < self.iterations - 1:
                logits = logits + (priors * outputs).sum(dim=-1, keepdim=True)
        pose = outputs.squeeze(3).squeeze(2).transpose(0, 1)
        return Capsules(pose, pose.square().sum(dim=-1).sqrt())

    @staticmethod
    def squash(s: Tensor) -> Tensor:
        """Equation 1, without care for zero."""
        squared_norm = s.square().sum(dim=-1, keepdim=True)
        return squared_norm / (1 + squared_norm) * s / squared_norm.sqrt()


class EinsumCapsules(nn.Module):
    """The best public eager code: votes once, logits `[b, i, j]`, every sum an einsum; the votes are stored."""

    def __init__(self, layer: CapsuleLinear) -> None:
        super().__init__()
        self.iterations = iterations_of(layer)
        self.weight, self.bias = deepcopy(layer.weight), deepcopy(layer.bias)

    def forward(self, children: Capsules) -> Capsules:
        votes = torch.einsum("bik,ijdk->bijd", children.pose, self.weight)
        logits = votes.new_zeros(votes.shape[:3])
        for step in range(self.iterations):
            s = torch.einsum("bij,bijd->bjd", logits.softmax(dim=-1), votes)
            pose, length = squash_with_length(s if self.bias is None else s + self.bias)
            if step < self.iterations - 1:
                logits = logits + torch.einsum("bijd,bjd->bij", votes, pose.to(votes.dtype))
        return Capsules(pose, length)


class LinearLimit(nn.Module):
    """No routing: a plain linear layer of as many weights, then squash. The limit that routing is measured against."""

    def __init__(self, layer: CapsuleLinear) -> None:
        super().__init__()
        self.sizes, has_bias = (layer.out_capsules, layer.out_dim), layer.bias is not None
        self.linear = nn.Linear(
            layer.in_capsules * layer.in_dim, layer.out_capsules * layer.out_dim, bias=has_bias
        )

    def forward(self, children: Capsules) -> Capsules:
        return Capsules(
            *squash_with_length(self.linear(children.pose.flatten(1)).unflatten(1, self.sizes))
        )


class Variant(NamedTuple):
    """A class-capsule layer to put in the place of another, and whether it computes the same."""

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
    **{
        impl: Variant(partial(library, impl))
        for impl in ("auto", "numba", "blocked", "triton", "reference")
    },
    "einsum": Variant(EinsumCapsules),
    "compiled": Variant(compiled),
    "textbook": Variant(TextbookCapsules),
}


def select(
    argument: str,
    names: Sequence[str],
    known: Iterable[str],
    reasons: Callable[[], Mapping[str, str]] = dict,
    log: Log = silent,
) -> list[str]:
    """The names asked for, each once; without any, the known ones that nothing speaks against: the others are logged
    with their reasons. Raises UnknownNameError for one that does not exist."""
    for name in names:
        check_known(argument, name, known)
    if names:
        return list(dict.fromkeys(names))
    against = reasons()
    for name, reason in against.items():
        log(f"left out: {name} ({reason})")
    return [name for name in known if name not in against]


def unusable(layer: CapsuleLinear) -> dict[str, str]:
    """Variants that cannot take the place of this layer on this machine, and why."""
    pose = layer.weight.new_zeros(1, layer.in_capsules, layer.in_dim)
    reasons = {}
    for name in set(ops.IMPLS) & set(VARIANTS):
        try:
            ops.choose("dynamic_routing", layer.make_votes(pose), impl=name)
        except ValueError as error:
            reasons[name] = str(error)
    if not any(map(which, COMPILERS)):
        reasons["compiled"] = f"torch.compile needs one of {', '.join(COMPILERS)}"
    return reasons


def iterations_of(layer: CapsuleLinear) -> int:
    """Iterations of its dynamic routing. Raises ValueError for another routing, or one with options that the baselines
    do not have."""
    router = layer.router
    if not isinstance(router, DynamicRouting) or router.leaky or router.detach:
        raise ArgumentError(
            "routing", f"expected plain dynamic routing to compare with, got {router}"
        )
    return router.iterations


class WrongResultError(TorchcapsError):
    """A variant computes something else than the reference."""


def outputs_of(layer: nn.Module, pose: Tensor, upstream: Tensor) -> list[Tensor]:
    """Poses, lengths, gradient of the children's poses."""
    pose = pose.detach().requires_grad_()
    capsules = layer(Capsules(pose, pose.norm(dim=-1)))
    ((capsules.pose * upstream).sum() + capsules.activation.sum()).backward()
    assert pose.grad is not None
    return [capsules.pose.detach(), capsules.activation.detach(), pose.grad]


def verify(names: Sequence[str], layer: CapsuleLinear, batch: int = 4) -> dict[str, float]:
    """Largest relative error of each exact variant among `names`. Raises WrongResultError for one beyond tolerance."""
    generator = torch.Generator().manual_seed(0)
    pose = (
        torch.randn(batch, layer.in_capsules, layer.in_dim, generator=generator).to(
            layer.weight.device
        )
        * 0.1
    )
    upstream = torch.randn(batch, layer.out_capsules, layer.out_dim, generator=generator).to(
        layer.weight.device
    )
    truth = outputs_of(VARIANTS["reference"].build(layer), pose, upstream)
    builds = {name: VARIANTS[name].build for name in names if VARIANTS[name].exact}
    return check_errors(
        {
            n: largest_error(outputs_of(build(layer), pose, upstream), truth)
            for n, build in builds.items()
        }
    )


def largest_error(outputs: Sequence[Tensor], truth: Sequence[Tensor]) -> float:
    """Largest difference of any pair, over the largest magnitude of its truth."""
    pairs = zip(outputs, truth, strict=True)
    return max(((x - t).abs().max() / t.abs().max()).item() for x, t in pairs)


def check_errors(errors: Mapping[str, float]) -> dict[str, float]:
    """These errors. Raises WrongResultError if one exceeds the tolerance, or is NaN."""
    for name, error in errors.items():
        if not error <= TOLERANCE:
            raise WrongResultError(
                f"{name}: differs from the reference by {error:.1e}; nothing was timed"
            )
    return dict(errors)

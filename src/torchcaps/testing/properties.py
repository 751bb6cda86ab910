"""What every router must keep, as checks that a router of one's own can be put to.

A router is checked as a layer builds it, and in what it declares: the meaning of its activation, what its couplings sum
to, whether children and parents are permutation_equivariant. Sizes are drawn at random.
Each check raises PropertyError, an AssertionError, that says what does not hold.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.errors import AblationUnsupportedError, ArgumentError
from torchcaps.functional.votes import DenseVotes
from torchcaps.nn.routed import RoutedLayer
from torchcaps.nn.routers import Router, Routing, create_router
from torchcaps.nn.votes import LinearVotes
from torchcaps.testing.compare import (
    PropertyError,
    assert_between,
    assert_close,
    assert_finite,
    assert_gradients,
)
from torchcaps.testing.random import random_votes, seeded
from torchcaps.types import LayerSizes, Routed

SHAPES = 3  # drawn for each check


class _Inputs(NamedTuple):
    """Votes `[batch, *space, i, j, h]`, activation `[batch, *space, i]` and pose `[batch, *space, i, d]`."""

    votes: Tensor
    activation: Tensor
    pose: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> _Inputs:
        return _Inputs(*map(change, self))


def check_router(routing: Routing, **options: Any) -> None:
    """Put a router to every check of this file; PropertyError names the tensor and the size of the error.

    Args:
        routing: as `CapsuleLinear(routing=...)` takes it: a name, a router or another module, or a function
            `(votes, activation) -> Routed`, which is taken to give lengths and couplings that sum to one.
        options: of the router of that name. Where it has options `leaky` or `detach` that are set, couplings may sum to
            less than one, and gradients need not be those of finite differences.

    Example:
        >>> from torchcaps.testing import check_router
        >>> check_router("dynamic", iterations=2)
    """
    for check in (
        check_ranges,
        check_permutations,
        check_batch_independence,
        check_purity,
        check_extremes,
        check_gradients,
        check_precision,
        check_copies,
        check_ablations,
    ):
        check(routing, **options)


def check_ranges(routing: Routing, **options: Any) -> None:
    """Couplings and activations are what the router declares them to be."""
    for router, inputs in _cases(routing, options, space=(2, 3)):
        routed = _route(router, inputs)
        share = _coupling(routed).sum(dim=-1)
        if router.normalized:
            assert_between("coupling", _coupling(routed), 0.0, 1.0, slack=1e-6)
            low = 0.0 if getattr(router, "leaky", False) else 1.0
            assert_between("sum of couplings over parents", share, low, 1.0, slack=1e-6)
        if router.activation != "none":
            assert_between("activation", routed.activation, 0.0, 1.0, slack=1e-6)
        if router.activation == "length":
            assert_close(
                "activation against length of pose",
                routed.activation,
                routed.pose.norm(dim=-1),
                1e-6,
                1e-3,
            )


def check_permutations(routing: Routing, **options: Any) -> None:
    """Permuting batch or positions permutes the outcome; children and parents too, if permutation_equivariant."""
    for router, inputs in _cases(routing, options, space=(2, 3), perturbed=False):
        routed = _route(router, inputs)
        for name, axis in {"batch": 0, "height": 1, "width": 2}.items():
            moved = _route(router, inputs.map(partial(torch.roll, shifts=1, dims=axis)))
            _same(f"{name}: ", moved, Routed(*(t.roll(1, axis) for t in _whole(routed))))
        if not router.permutation_equivariant:
            continue
        pose, length, coupling = _whole(routed)
        moved = _route(router, inputs._replace(votes=inputs.votes.roll(1, -2)))
        _same(
            "parents: ", moved, Routed(pose.roll(1, -2), length.roll(1, -1), coupling.roll(1, -1))
        )
        moved = _route(router, inputs.map(lambda x: x.roll(1, 3)))
        _same("children: ", moved, Routed(pose, length, coupling.roll(1, -2)))


def check_batch_independence(routing: Routing, **options: Any) -> None:
    """A batch of one gives the row that it has in a batch, and a batch of none gives none."""
    for router, inputs in _cases(routing, options):
        whole = _route(router, inputs)
        alone = _route(router, inputs.map(lambda x: x[1:2]))
        _same("batch of one: ", alone, Routed(*(t[1:2] for t in _whole(whole))))


def check_purity(routing: Routing, **options: Any) -> None:
    """The inputs stay as they were, and nothing is kept from one call to the next."""
    for router, inputs in _cases(routing, options):
        before = inputs.map(Tensor.clone)
        first = _route(router, inputs)
        for name, now, then in zip(_Inputs._fields, inputs, before, strict=True):
            assert_close(f"{name} after the call", now, then, 0.0)
        _route(router, inputs._replace(votes=inputs.votes.flip(0) * 3.0))
        _same("second call: ", _route(router, inputs), first)


def check_extremes(routing: Routing, **options: Any) -> None:
    """Zero, tiny and huge votes, one child and one parent: finite values and finite gradients, activations in range."""
    for children, parents in ((1, 1), (1, 4), (5, 1), (5, 4)):
        sizes = LayerSizes(children, 2, parents, 3)
        router = _built(routing, options, sizes)
        votes, activation, pose = _inputs(sizes, batch=2)
        for scale in (0.0, 1e-30, 1.0, 1e18, 1e30, 1e37):
            given = _Inputs(votes * scale, torch.full_like(activation, 0.5), pose)
            _check_finite(router, given, f"of votes of size {scale:g}")
        for value in (0.0, 1.0):
            given = _Inputs(votes, torch.full_like(activation, value), pose)
            _check_finite(router, given, f"of children of activation {value:g}")


def check_gradients(routing: Routing, **options: Any) -> None:
    """In float64 the gradients of pose, activation, coupling equal finite differences, but those cut with `detach`."""
    for router, inputs in _cases(routing, options, batch=2, most=3):
        if getattr(router, "detach", False):
            return
        assert_gradients(router, inputs, DenseVotes, _whole)


def check_precision(routing: Routing, **options: Any) -> None:
    """Under bfloat16 autocast, and for half-precision votes, the outcome is that of float32, in float32."""
    for router, inputs in _cases(routing, options):
        expected = _route(router, inputs)
        for name, tensor in zip(Routed._fields, _whole(expected), strict=True):
            if tensor.dtype != torch.float32:
                raise PropertyError(f"{name}: expected torch.float32, got {tensor.dtype}")
        with torch.autocast("cpu", torch.bfloat16):
            _same("under autocast: ", _route(router, inputs), expected)
        for dtype in (torch.bfloat16, torch.float16):
            half = inputs.votes.to(dtype)
            routed = _route(router, inputs._replace(votes=half))
            _same(f"{dtype}: ", routed, _route(router, inputs._replace(votes=half.float())))


def check_copies(routing: Routing, **options: Any) -> None:
    """A deep copy routes alike, and so does one that went through pickle (a router of a function need not)."""
    for router, inputs in _cases(routing, options, perturbed=False):
        if isinstance(routing, nn.Module) and not isinstance(routing, Router):
            router = create_router(routing)  # itself, and not the copy that other checks change
        expected = _route(router, inputs)
        _same("deepcopy: ", _route(copy.deepcopy(router), inputs), expected)
        if isinstance(routing, str | nn.Module):
            _same("pickle: ", _route(pickle.loads(pickle.dumps(router)), inputs), expected)


def check_ablations(routing: Routing, **options: Any) -> None:
    """`uniform()` has equal couplings, `random()` the same for every sample; both leave the router as it was."""
    for router, inputs in _cases(routing, options):
        before = _route(router, inputs)
        try:
            uniform, random = (
                _coupling(_route(other, inputs)) for other in (router.uniform(), router.random(3))
            )
        except AblationUnsupportedError:
            return
        assert_close(
            "couplings of uniform()", uniform, uniform[:1, :1, :1].expand_as(uniform), 1e-6
        )
        assert_close("couplings of random()", random, random[:1].expand_as(random), 1e-6)
        if router.num_iterations > 1:
            assert_finite(
                "pose of with_iterations(1)", _route(router.with_iterations(1), inputs).pose
            )
        _same("after its ablations: ", _route(router, inputs), before)


def _cases(
    routing: Routing,
    options: dict[str, Any],
    *,
    batch: int = 3,
    space: tuple[int, ...] = (),
    most: int = 6,
    perturbed: bool = True,
) -> Iterator[tuple[Router, _Inputs]]:
    """Routers as layers of random sizes build them, and inputs.

    Parameters at their start hide what they do: they are perturbed."""
    generator = seeded(4)
    for _ in range(SHAPES):
        drawn = torch.randint(2, most + 1, (4,), generator=generator).tolist()
        sizes = getattr(routing, "sizes", None) or LayerSizes(*drawn)
        router = _built(routing, options, sizes)
        if perturbed:
            for parameter in router.parameters():
                parameter.data.add_(
                    0.3 * torch.randn(parameter.shape, generator=generator).to(parameter)
                )
        yield router, _inputs(sizes, batch, space)


def _built(routing: Routing, options: dict[str, Any], sizes: LayerSizes) -> Router:
    routing = copy.deepcopy(routing) if isinstance(routing, nn.Module) else routing
    router: Any = RoutedLayer(LinearVotes(sizes), routing, **options).router
    return router.eval()


def _inputs(sizes: LayerSizes, batch: int = 3, space: tuple[int, ...] = ()) -> _Inputs:
    votes = random_votes(batch, sizes.children, sizes.parents, sizes.dim, space=space)
    pose = torch.randn(*votes.shape[:-2], sizes.in_dim, generator=seeded(3))
    return _Inputs(votes, torch.rand(votes.shape[:-2], generator=seeded(1)), pose)


def _route(router: Router, inputs: _Inputs) -> Routed:
    return router(DenseVotes(*inputs))


def _check_finite(router: Router, inputs: _Inputs, what: str) -> None:
    leaves = inputs.map(lambda x: x.detach().clone().requires_grad_())
    routed = _route(router, leaves)
    for name, tensor in zip(Routed._fields, _whole(routed), strict=True):
        assert_finite(f"{name} {what}", tensor)
    if router.activation != "none":
        assert_between(f"activation {what}", routed.activation, 0.0, 1.0, slack=1e-6)
    upstream = torch.rand(
        _coupling(routed).shape, generator=seeded(2)
    )  # the sum of couplings alone is constant
    outcome = routed.pose.sum() + routed.activation.sum() + (_coupling(routed) * upstream).sum()
    gradients = torch.autograd.grad(outcome, leaves, allow_unused=True)
    for name, gradient in zip(_Inputs._fields, gradients, strict=True):
        if gradient is not None:
            assert_finite(f"gradient by {name} {what}", gradient)


def _coupling(routed: Routed) -> Tensor:
    if routed.coupling is None:
        raise ArgumentError(
            "router", "expected a coupling [batch, *space, children, parents], got None"
        )
    return routed.coupling


def _whole(routed: Routed) -> tuple[Tensor, Tensor, Tensor]:
    return routed.pose, routed.activation, _coupling(routed)


def _same(what: str, actual: Routed, expected: Routed) -> None:
    try:
        for name, tensor, truth in zip(
            Routed._fields, _whole(actual), _whole(expected), strict=True
        ):
            if tensor.dtype != truth.dtype:
                raise PropertyError(f"{name}: expected {truth.dtype}, got {tensor.dtype}")
            assert_close(name, tensor, truth, 1e-5, floor=1e-6)
    except PropertyError as error:
        raise PropertyError(f"{what}{error}") from None

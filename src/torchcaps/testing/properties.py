"""What every router must keep, as checks that a router of one's own can be put to."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from torchcaps.testing.compare import PropertyError, assert_between, assert_close, assert_finite, assert_same_routing
from torchcaps.testing.random import random_votes, seeded
from torchcaps.types import Routed

Route = Callable[[Tensor, Tensor], Routed]


def check_router(router: Route, *, leaky: bool = False, lengths: bool = True, detached: bool = False) -> None:
    """Put a router to every check of this file.

    Args:
        router: maps votes `[batch, *space, children, parents, dim]` and the children's activation
            `[batch, *space, children]` to Routed; a module or a plain function.
        leaky: couplings may sum to less than one over parents.
        lengths: the activation is the length of the pose, as for vector capsules.
        detached: the gradient is cut on purpose, so `check_gradients` is left out.

    Raises:
        PropertyError: naming the property's tensor and the size of the error.

    Example:
        >>> from torchcaps.functional import dynamic_routing
        >>> from torchcaps.testing import check_router
        >>> check_router(lambda votes, activation: dynamic_routing(votes, 2))
    """
    check_ranges(router, leaky=leaky, lengths=lengths)
    check_permutations(router)
    check_batch_independence(router)
    check_purity(router)
    check_extremes(router)
    if not detached:
        check_gradients(router)
    check_precision(router)
    check_copies(router)


def check_ranges(router: Route, *, leaky: bool = False, lengths: bool = True) -> None:
    """Couplings lie in [0, 1] and sum to one over parents; activations lie in [0, 1] and are the poses' lengths."""
    routed = router(*_inputs(space=(2, 3)))
    coupling = _coupling(routed)
    assert_between("coupling", coupling, 0.0, 1.0, slack=1e-6)
    share = coupling.sum(dim=-1)
    if leaky:
        assert_between("sum of couplings over parents", share, 0.0, 1.0, slack=1e-6)
    else:
        assert_close("sum of couplings over parents", share, torch.ones_like(share), 1e-6)
    assert_between("activation", routed.activation, 0.0, 1.0, slack=1e-6)
    if lengths:
        assert_close("activation against length of pose", routed.activation, routed.pose.norm(dim=-1), 1e-6)


def check_permutations(router: Route) -> None:
    """Permuting batch, positions or parents permutes the outcome; permuting children permutes the coupling alone."""
    votes, activation = _inputs(space=(2, 3))
    routed = router(votes, activation)
    for name, axis in {"batch": 0, "height": 1, "width": 2}.items():
        order = _order(votes.shape[axis])
        moved = router(votes.index_select(axis, order), activation.index_select(axis, order))
        _same(f"{name}: ", moved, Routed(*(t.index_select(axis, order) for t in _whole(routed))))
    order = _order(votes.shape[-2])
    moved = router(votes.index_select(-2, order), activation)
    pose, length, coupling = _whole(routed)
    expected = Routed(pose[..., order, :], length[..., order], coupling[..., order])
    _same("parents: ", moved, expected)
    order = _order(votes.shape[-3])
    moved = router(votes.index_select(-3, order), activation.index_select(-1, order))
    _same("children: ", moved, Routed(pose, length, coupling[..., order, :]))


def check_batch_independence(router: Route) -> None:
    """A batch of one gives the row that it has in a batch."""
    votes, activation = _inputs()
    whole = router(votes, activation)
    alone = router(votes[1:2], activation[1:2])
    _same("batch of one: ", alone, Routed(*(t[1:2] for t in _whole(whole))))


def check_purity(router: Route) -> None:
    """The inputs stay as they were, and nothing is kept from one call to the next."""
    votes, activation = _inputs()
    before = votes.clone(), activation.clone()
    first = router(votes, activation)
    assert_close("votes after the call", votes, before[0], 0.0)
    assert_close("activation after the call", activation, before[1], 0.0)
    router(votes.flip(0) * 3.0, activation)
    _same("second call: ", router(votes, activation), first)


def check_extremes(router: Route) -> None:
    """Zero, tiny and huge votes, one child and one parent: finite values and finite gradients, activations in range."""
    for scale in (0.0, 1e-30, 1.0, 1e18, 1e30, 1e37):
        for children, parents in ((1, 1), (1, 4), (5, 1), (5, 4)):
            votes = (random_votes(2, children, parents, 3) * scale).requires_grad_()
            routed = router(votes, votes.new_full((2, children), 0.5))
            for name, tensor in zip(("pose", "activation", "coupling"), _whole(routed), strict=True):
                assert_finite(f"{name} of votes of size {scale:g}", tensor)
            assert_between(f"activation of votes of size {scale:g}", routed.activation, 0.0, 1.0, slack=1e-6)
            upstream = torch.rand(votes.shape[:-1], generator=seeded(2))  # the sum of couplings alone is constant
            outcome = routed.pose.sum() + routed.activation.sum() + (_coupling(routed) * upstream).sum()
            (gradient,) = torch.autograd.grad(outcome, votes)
            assert_finite(f"gradient of votes of size {scale:g}", gradient)


def check_gradients(router: Route) -> None:
    """In float64 the gradients of pose, activation and coupling equal finite differences.

    Routers that cut the gradient on purpose (detached coupling) must not be put to this check.
    """
    router = copy.deepcopy(router).double() if isinstance(router, torch.nn.Module) else router
    votes = random_votes(2, 4, 3, 2, dtype=torch.float64).requires_grad_()
    activation = torch.rand(2, 4, generator=seeded(1), dtype=torch.float64).requires_grad_()
    try:
        torch.autograd.gradcheck(lambda v, a: _whole(router(v, a)), (votes, activation), atol=1e-6)
    except GradcheckError as error:
        raise PropertyError(f"gradient against finite differences: {error}") from None


def check_precision(router: Route) -> None:
    """Under bfloat16 autocast, and for half-precision votes, the outcome is that of float32, in float32."""
    votes, activation = _inputs()
    expected = router(votes, activation)
    with torch.autocast("cpu", torch.bfloat16):
        _same("under autocast: ", router(votes, activation), expected)
    for dtype in (torch.bfloat16, torch.float16):
        half = votes.to(dtype)
        routed = router(half, activation)
        _same(f"{dtype}: ", routed, router(half.float(), activation))


def check_copies(router: Route) -> None:
    """A deep copy routes alike, and so does one that went through pickle (modules only)."""
    inputs = _inputs()
    expected = router(*inputs)
    _same("deepcopy: ", copy.deepcopy(router)(*inputs), expected)
    if isinstance(router, torch.nn.Module):
        _same("pickle: ", pickle.loads(pickle.dumps(router))(*inputs), expected)


def _inputs(space: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    votes = random_votes(3, 6, 5, 4, space=space)
    return votes, torch.rand(votes.shape[:-2], generator=seeded(1))


def _order(count: int) -> Tensor:
    """A permutation that moves every element."""
    return torch.arange(count).roll(1)


def _coupling(routed: Routed) -> Tensor:
    if routed.coupling is None:
        raise ValueError("router: expected a coupling [batch, *space, children, parents], got None")
    return routed.coupling


def _whole(routed: Routed) -> tuple[Tensor, Tensor, Tensor]:
    return routed.pose, routed.activation, _coupling(routed)


def _same(what: str, actual: Routed, expected: Routed) -> None:
    try:
        for name, tensor, truth in zip(Routed._fields, _whole(actual), _whole(expected), strict=True):
            if tensor.dtype != truth.dtype:
                raise PropertyError(f"{name}: expected {truth.dtype}, got {tensor.dtype}")
        assert_same_routing(actual, expected, 1e-5, floor=1e-6)
    except PropertyError as error:
        raise PropertyError(f"{what}{error}") from None

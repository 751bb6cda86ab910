"""Properties of every router, as checks that routers of users can be put to.

A router is checked as a layer builds it, and in what it declares: the meaning of its activation,
the sum of its couplings, whether children and parents are permutation equivariant. Sizes are drawn
at random. Each check raises PropertyError, an AssertionError, that says what does not hold.
"""

import copy
import pickle
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchcaps.errors import AblationUnsupportedError, ArgumentError
from torchcaps.functional.votes import DenseVotes, FixedCoupling, RoutingContext
from torchcaps.nn.routed import RoutedLayer
from torchcaps.nn.routers import FunctionRouter, Router, Routing, create_router
from torchcaps.nn.votes import LinearVotes
from torchcaps.testing.compare import (
    SLACK,
    PropertyError,
    assert_between,
    assert_close,
    assert_finite,
    assert_finite_pass,
    assert_float32,
    assert_gradients,
    assert_moves_along,
    assert_outcome,
    assert_pure,
)
from torchcaps.testing.random import random_votes, seeded
from torchcaps.types import LayerSizes, Routed

NUM_SHAPES = 2  # drawn for each check
SPREAD = 1e-5  # change of an activation by the spread of votes that is rounding


class _Inputs(NamedTuple):
    """Votes `[batch, *space, i, j, h]`, activation `[batch, *space, i]`, pose `[..., i, d]`."""

    votes: Tensor
    activation: Tensor
    pose: Tensor


def check_ranges(routing: Routing, **options: Any) -> None:
    """Couplings and activations are what the router declares them to be.

    Args:
        routing: name of a router, a router, or a function `(votes, activation) -> Routed`.
        options: of the router of that name, such as `iterations=2`.

    Raises:
        PropertyError: for a router without this property.
    """
    for router, inputs in _make_cases(routing, options, space=(2, 3)):
        pose, activation, coupling = _route(router, inputs)
        if router.normalized:
            assert_between("coupling", coupling, 0.0, 1.0, SLACK)
            low = 0.0 if getattr(router, "leaky", False) else 1.0
            assert_between("sum of couplings over parents", coupling.sum(-1), low, 1.0, SLACK)
        if router.activation != "none":
            assert_between("activation", activation, 0.0, 1.0, SLACK)
        if router.activation == "length":
            lengths = pose.norm(dim=-1)
            assert_close("activation against length of pose", activation, lengths, 1e-6, 1e-3)


def check_permutations(routing: Routing, **options: Any) -> None:
    """Permuting batch or positions permutes the outcome.

    So do children and parents of a router that declares it, `permutation_equivariant`.

    Args:
        routing: name of a router, a router, or a function `(votes, activation) -> Routed`.
        options: of the router of that name, such as `iterations=2`.

    Raises:
        PropertyError: for a router without this property.
    """
    for router, inputs in _make_cases(routing, options, space=(2, 3), is_perturbed=False):
        route = partial(_route, router)
        routed = route(inputs)
        for axis, name in enumerate(("batch", "height", "width")):
            roll = partial(torch.roll, shifts=1, dims=axis)
            assert_moves_along(name, route, inputs, routed, roll)
        if not router.permutation_equivariant:
            continue
        pose, activation, coupling = routed
        permuted = route(inputs._replace(votes=inputs.votes.roll(1, -2)))
        expected = Routed(pose.roll(1, -2), activation.roll(1, -1), coupling.roll(1, -1))
        advice = "if places matter, set permutation_equivariant = False"
        assert_outcome(f"{advice}; parents", permuted, expected)
        permuted = route(_Inputs._make(tensor.roll(1, 3) for tensor in inputs))
        expected = Routed(pose, activation, coupling.roll(1, -2))
        assert_outcome(f"{advice}; children", permuted, expected)


def check_purity(routing: Routing, **options: Any) -> None:
    """A sample depends on neither the batch around it nor earlier calls, and inputs stay the same.

    Args:
        routing: name of a router, a router, or a function `(votes, activation) -> Routed`.
        options: of the router of that name, such as `iterations=2`.

    Raises:
        PropertyError: for a router without this property.
    """
    for router, inputs in _make_cases(routing, options):
        route = partial(_route, router)
        routed = route(inputs)
        route(inputs._replace(votes=inputs.votes.flip(0) * 3.0))
        assert_pure(route, inputs, routed)
        assert_moves_along("batch of one", route, inputs, routed, lambda x: x[1:2])


def check_extremes(routing: Routing, **options: Any) -> None:
    """Zero, tiny and huge votes, one child and one parent: finite values and finite gradients.

    Args:
        routing: name of a router, a router, or a function `(votes, activation) -> Routed`.
        options: of the router of that name, such as `iterations=2`.

    Raises:
        PropertyError: for a router without this property.
    """
    for children, parents in ((1, 1), (1, 4), (5, 1), (5, 4)):
        sizes = LayerSizes(children, 2, parents, 3)
        router = build_router(routing, options, sizes)
        votes, activation, pose = _make_inputs(sizes, batch=2)
        scales = [(scale, 0.5) for scale in (0.0, 1e-30, 1.0, 1e18, 1e30, 1e37)]
        for scale, level in (*scales, (1.0, 0.0), (1.0, 1.0)):
            inputs = _Inputs(votes * scale, torch.full_like(activation, level), pose)
            label = f"of votes of size {scale:g} and children of activation {level:g}"
            routed = assert_finite_pass(label, partial(_route, router), inputs)
            if router.activation != "none":
                assert_between(f"activation {label}", routed.activation, 0.0, 1.0, SLACK)


def check_gradients(routing: Routing, **options: Any) -> None:
    """In float64 gradients equal finite differences, but those that an option `detach` cuts.

    Args:
        routing: name of a router, a router, or a function `(votes, activation) -> Routed`.
        options: of the router of that name, such as `iterations=2`.

    Raises:
        PropertyError: for a router without this property.
    """
    for router, inputs in _make_cases(routing, options, batch=2, max_size=3):
        if getattr(router, "detach", False):
            return
        assert_gradients(router, inputs, DenseVotes)


def check_precision(routing: Routing, **options: Any) -> None:
    """Under bfloat16 autocast, and for half-precision votes, the outcome is that of float32.

    Args:
        routing: name of a router, a router, or a function `(votes, activation) -> Routed`.
        options: of the router of that name, such as `iterations=2`.

    Raises:
        PropertyError: for a router without this property.
    """
    for router, inputs in _make_cases(routing, options):
        expected = _route(router, inputs)
        assert_float32(expected)
        with torch.autocast("cpu", torch.bfloat16):
            outcome = _route(router, inputs)
        assert_outcome("under autocast", outcome, expected)
        assert_float32(outcome, " under autocast")
        for dtype in (torch.bfloat16, torch.float16):
            half = inputs.votes.to(dtype)
            outcome = _route(router, inputs._replace(votes=half))
            assert_outcome(f"{dtype}", outcome, _route(router, inputs._replace(votes=half.float())))
            assert_float32(outcome, f" of {dtype}")


def check_copies(routing: Routing, **options: Any) -> None:
    """A deep copy routes alike, and so does a pickle, unless the router is a function.

    Args:
        routing: name of a router, a router, or a function `(votes, activation) -> Routed`.
        options: of the router of that name, such as `iterations=2`.

    Raises:
        PropertyError: for a router without this property.
    """
    for router, inputs in _make_cases(routing, options, is_perturbed=False):
        if isinstance(routing, nn.Module) and not isinstance(routing, Router):
            router = create_router(routing)  # itself, and not the copy that other checks change
        expected = _route(router, inputs)
        assert_outcome("deepcopy", _route(copy.deepcopy(router), inputs), expected)
        if isinstance(routing, str | nn.Module):
            assert_outcome("pickle", _route(pickle.loads(pickle.dumps(router)), inputs), expected)


def check_ablations(routing: Routing, **options: Any) -> None:
    """`uniform()` has equal couplings, `random()` those of its seed, the same for every sample.

    If votes spread twice as far about the same mean, the activations of `uniform()` change only
    where the router declares `agreement`, and those of `uniform(agreement=False)` never do. Both
    leave the router as it is. A function makes its couplings by itself and has no ablations.

    Args:
        routing: name of a router, a router, or a function `(votes, activation) -> Routed`.
        options: of the router of that name, such as `iterations=2`.

    Raises:
        PropertyError: for a router without this property.
    """
    for router, inputs in _make_cases(routing, options):
        before = _route(router, inputs)
        try:
            uniform = _route(router.uniform(), inputs).coupling
            random = _route(router.random(3), inputs).coupling
        except AblationUnsupportedError as error:
            if isinstance(router, FunctionRouter):
                return
            raise PropertyError(str(error)) from error
        first = uniform[:1, :1, :1].expand_as(uniform)
        assert_close("couplings of uniform()", uniform, first, 1e-6)
        assert_close("couplings of random()", random, random[:1].expand_as(random), 1e-6)
        if router.normalized and not getattr(router, "leaky", False):
            context = RoutingContext(fixed=FixedCoupling(3, 1.0, uses=[]))
            expected = DenseVotes(*inputs).bind(context).couple()
            assert_close("couplings of random() against its seed", random, expected, 1e-6)
        if router.num_iterations > 1:
            pose = _route(router.with_iterations(1), inputs).pose
            assert_finite("pose of with_iterations(1)", pose)
        _check_agreement(router, inputs)
        assert_outcome("after its ablations", _route(router, inputs), before)


def check_couplings(routing: Routing, **options: Any) -> None:
    """`route` calls `votes.couple` exactly once an iteration, and returns the last couplings.

    Otherwise the couplings of its iterations are recorded wrongly. A function makes its couplings
    by itself.

    Args:
        routing: name of a router, a router, or a function `(votes, activation) -> Routed`.
        options: of the router of that name, such as `iterations=2`.

    Raises:
        PropertyError: for a router without this property.
    """
    for router, inputs in _make_cases(routing, options):
        if isinstance(router, FunctionRouter):
            return
        trace: list[Tensor] = []
        routed = router(DenseVotes(*inputs), context=RoutingContext(trace=trace))
        if len(trace) != router.num_iterations:
            raise PropertyError(
                f"votes.couple: expected {router.num_iterations} calls, one an iteration, "
                f"got {len(trace)}"
            )
        assert_close("coupling against the last votes.couple", routed.coupling, trace[-1], 1e-6)


def _check_agreement(router: Router, inputs: _Inputs) -> None:
    if not router.permutation_equivariant:
        return  # its parameters may weigh children, and move the mean of the votes
    inputs = inputs._replace(activation=torch.ones_like(inputs.activation))
    mean = inputs.votes.mean(dim=-3, keepdim=True)
    spread = inputs._replace(votes=2 * inputs.votes - mean)

    def changes(ablated: Router) -> bool:
        difference = _route(ablated, inputs).activation - _route(ablated, spread).activation
        return bool((difference.abs() > SPREAD).any())

    if changes(router.uniform()) != router.agreement:
        raise PropertyError(f"agreement: declared {router.agreement}, which uniform() contradicts")
    if changes(router.uniform(agreement=False)):
        raise PropertyError("agreement: activations of uniform(agreement=False) depend on it")


def check_bias(routing: Routing, **options: Any) -> None:
    """The router adds a bias if, and only if, `adds_bias` says so.

    Args:
        routing: name of a router, a router, or a function `(votes, activation) -> Routed`.
        options: of the router of that name, such as `iterations=2`.

    Raises:
        PropertyError: for a router without this property.
    """
    for router, inputs in _make_cases(routing, options):
        if isinstance(router, FunctionRouter):
            return
        without_bias = _route(router, inputs).pose
        is_declared = router.adds_bias
        router.adds_bias = True  # otherwise a bias is refused
        bias = torch.randn(inputs.votes.shape[-2:], generator=seeded(5))
        try:
            pose = router(DenseVotes(*inputs, bias=bias)).pose
        except (ValueError, AssertionError):
            if is_declared:
                raise
            return  # the router itself refuses a bias
        if torch.equal(pose, without_bias) == is_declared:
            raise PropertyError(f"adds_bias: declared {is_declared}, which route contradicts")


ROUTER_CHECKS = (
    check_bias,
    check_couplings,
    check_ranges,
    check_permutations,
    check_purity,
    check_extremes,
    check_gradients,
    check_precision,
    check_copies,
    check_ablations,
)


def check_router(routing: Routing, **options: Any) -> None:
    """Run every check of this file.

    Args:
        routing: as `CapsuleLinear(routing=...)` takes it: a name, a router or another module, or a
            function `(votes, activation) -> Routed`, which has to give lengths and couplings that
            sum to one.
        options: of the router of that name. With an option `leaky` couplings may sum to less than
            one, with `detach` gradients need not be those of finite differences.

    Raises:
        PropertyError: names the tensor and the size of the error.

    Example:
        >>> from torchcaps.testing import check_router
        >>> check_router("dynamic", iterations=2)
    """
    for check in ROUTER_CHECKS:
        check(routing, **options)


def _make_cases(
    routing: Routing,
    options: dict[str, Any],
    *,
    batch: int = 3,
    space: tuple[int, ...] = (),
    max_size: int = 6,
    is_perturbed: bool = True,
) -> Iterator[tuple[Router, _Inputs]]:
    """Routers as layers of random sizes build them, and inputs.

    Parameters at their start hide their effect: they are perturbed by default.
    """
    generator = seeded(4)
    for _ in range(NUM_SHAPES):
        random_sizes = torch.randint(2, max_size + 1, (4,), generator=generator).tolist()
        sizes = getattr(routing, "sizes", None) or LayerSizes(*random_sizes)
        router = build_router(routing, options, sizes)
        if is_perturbed:
            for parameter in router.parameters():
                noise = torch.randn(parameter.shape, generator=generator).to(parameter)
                parameter.data.add_(0.3 * noise)
        yield router, _make_inputs(sizes, batch, space)


def build_router(routing: Routing, options: dict[str, Any], sizes: LayerSizes) -> Router:
    """A router as a layer of these sizes builds it; one that is given is copied.

    Args:
        routing: name of a router, a router, or a function `(votes, activation) -> Routed`.
        options: of the router of that name.
        sizes: of the layer.

    Returns:
        The router in eval mode.
    """
    if isinstance(routing, nn.Module):
        routing = copy.deepcopy(routing)
    return RoutedLayer(LinearVotes(sizes), routing, **options).router.eval()


def _make_inputs(sizes: LayerSizes, batch: int = 3, space: tuple[int, ...] = ()) -> _Inputs:
    votes = random_votes(batch, sizes.children, sizes.parents, sizes.dim, space=space)
    activation = torch.rand(votes.shape[:-2], generator=seeded(1))
    pose = torch.randn(*votes.shape[:-2], sizes.in_dim, generator=seeded(3))
    return _Inputs(votes, activation, pose)


def _route(router: Router, inputs: _Inputs) -> Any:
    """Pose, activation and coupling, without extras."""
    routed = router(DenseVotes(*inputs))
    if routed.coupling is None:
        raise ArgumentError(
            "router", "expected a coupling [batch, *space, children, parents], got None"
        )
    return Routed(*routed)

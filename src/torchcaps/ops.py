"""Dispatcher of operators: which implementation runs, and why."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps import (
    functional,
    kernels as kernels,  # every fast path registers itself
)
from torchcaps.errors import (
    ArgumentError,
    check_floating,
    check_known,
    check_range,
    check_shape,
)
from torchcaps.functional.routing.em import Beta, check_costs, temperatures
from torchcaps.functional.squash import full_precision, is_transforming
from torchcaps.functional.votes import AnyVotes, Bias, ProductVotes, Votes, as_votes
from torchcaps.kernels import registry
from torchcaps.kernels.samples import by_samples
from torchcaps.kernels.support import not_recomputable
from torchcaps.types import Routed

Impl = Literal["auto", "reference", "blocked", "bmm", "numba", "triton"]
IMPLS = get_args(Impl)


def dynamic_routing(
    votes: AnyVotes,
    iterations: int = 3,
    *,
    bias: Bias = None,
    leaky: bool = False,
    detach: bool = False,
    want_coupling: bool = False,
    impl: Impl = "auto",
) -> Routed:
    """Routing by agreement (arXiv 1710.09829) by the fastest implementation for these votes.

    The second derivative of a fast path is that of the reference.

    Args:
        votes: tensor `[batch, children, parents, dim]` or lazy votes.
        iterations: number of routing iterations, at least 1.
        bias: `[parents, dim]`, added to the weighted sum of the votes.
        leaky: let one more parent of logit 0 compete for each child.
        detach: send the gradient through the last weighted sum alone.
        want_coupling: return the coupling of a tensor of votes. Without it, a fast path returns
            None there. Lazy votes carry this choice themselves.
        impl: "auto", "reference", "blocked" (torch operations on blocks of samples), "bmm"
            (products of matrices, no votes), "numba" (compiled loops) or "triton" (GPU). An
            implementation chosen by name works or raises.

    Returns:
        Poses, activations and couplings of the parents.

    Raises:
        ValueError: a shape does not fit, `impl` is unknown, or it cannot take these votes.

    Example:
        >>> votes = torch.randn(2, 6, 5, 3)
        >>> dynamic_routing(votes, iterations=3).pose.shape
        torch.Size([2, 5, 3])
    """
    check_range("iterations", iterations, low=1)
    votes = _checked_votes(votes, None, bias, want_coupling)
    if votes.bias is not None:
        check_shape("bias", votes.bias, ("parents", "dim"), parents=votes.parents, dim=votes.dim)
    if votes.context.is_uniform:  # the first iteration has equal couplings by itself
        votes = votes.bind(votes.context.without_fixed())
        iterations = 1

    route = fastest("dynamic_routing", votes, impl) or functional.dynamic_routing
    return route(votes, iterations=iterations, leaky=leaky, detach=detach)


def em_routing(
    votes: AnyVotes,
    activation: Float[Tensor, "*batch children"] | None,
    beta_u: Beta,
    beta_a: Beta,
    iterations: int = 3,
    inverse_temperature: float | Sequence[float] = 0.01,
    *,
    impl: Impl = "auto",
) -> Routed:
    """EM routing (ICLR 2018, "Matrix capsules") by the fastest implementation for these votes.

    Args:
        votes: tensor `[batch, children, parents, dim]` or lazy votes.
        activation: `[batch, children]`; None for lazy votes, which have it.
        beta_u: cost of a parent without votes, a number or `[parents]`; see
            `functional.em_routing`.
        beta_a: threshold of the activation, a number or `[parents]`; see `functional.em_routing`.
        iterations: number of routing iterations, at least 1.
        inverse_temperature: of all iterations, or of each.
        impl: as of `dynamic_routing`; "blocked" and "numba" take lazy votes alone.

    Returns:
        Poses, activations and couplings of the parents.

    Raises:
        ValueError: as of `dynamic_routing`.
    """
    inverse_temperatures = temperatures(iterations, inverse_temperature)
    votes = _checked_votes(votes, activation, None, True)
    check_costs(votes.parents, beta_u=beta_u, beta_a=beta_a)
    if votes.context.is_uniform:  # every M-step is the first one; the last temperature counts
        votes = votes.bind(votes.context.without_fixed())
        inverse_temperatures = inverse_temperatures[-1:]

    run = fastest("em_routing", votes, impl)
    if run:
        return run(votes, beta_u=beta_u, beta_a=beta_a, temperatures=inverse_temperatures)
    return functional.em_routing(
        votes,
        None,
        beta_u,
        beta_a,
        len(inverse_temperatures),
        inverse_temperatures,
    )


def conv2d(
    x: Float[Tensor, "batch channels height width"],
    weight: Float[Tensor, "outputs channels rows columns"],
    bias: Float[Tensor, " outputs"] | None = None,
    stride: int | tuple[int, int] = 1,
    *,
    impl: Impl = "auto",
) -> Float[Tensor, "batch outputs out_height out_width"]:
    """`torch.nn.functional.conv2d` without padding; on a CPU, large kernels in the frequency domain.

    The 9x9 convolution of primary capsules is most of the arithmetic of a capsule network. In the
    frequency domain it takes a fifth of the products, at the same precision in float32.

    Args:
        x: `[batch, channels, height, width]`.
        weight: `[outputs, channels, rows, columns]`.
        bias: `[outputs]`.
        stride: of both axes, or of each; at least 1.
        impl: "auto", "reference" (torch's own) or "blocked" (in the frequency domain, where that
            takes fewer products).

    Returns:
        `[batch, outputs, out_height, out_width]`.

    Raises:
        ValueError: a shape does not fit, or as of `dynamic_routing`.
    """
    _, channels, rows, columns = weight.shape
    check_shape("x", x, ("batch", "channels", "height", "width"), channels=channels)
    check_floating(x=x, weight=weight)
    check_range("height of x", x.shape[2], low=rows)
    check_range("width of x", x.shape[3], low=columns)
    strides = (stride, stride) if isinstance(stride, int) else stride
    check_range("stride", min(strides), low=1)

    path, _ = _choose("conv2d", (x, weight), impl)
    if path is None:
        return torch.nn.functional.conv2d(x, weight, bias, strides)
    return path.run(x, weight, bias, strides)


def in_blocks(
    route: Callable[..., tuple[Any, ...]], votes: Votes, *others: Tensor | None
) -> tuple[Any, ...]:
    """`route(votes, *others)` for a routing without a fast path, without storing all votes.

    Where votes are products of poses and matrices, one block of samples is routed at a time. Its
    votes are computed again for the gradient.

    Args:
        route: returns tensors `[batch, ...]`, the couplings last, which may be None.
        votes: votes of a batch, stored or lazy.
        others: more tensors `[batch, ...]` or None, which are split into the same blocks.

    Returns:
        What `route` returns for the whole batch.
    """
    is_whole = torch.compiler.is_exporting() or is_transforming() or not_recomputable(votes)
    if is_whole or len(votes.children.pose) == 0:
        return route(votes, *others)
    return by_samples(route, votes, *others)


def fastest(op: str, votes: Votes, impl: Impl = "auto") -> Callable[..., Routed] | None:
    """The fast path of a routing for these votes, None for the reference; errors as of `choose`."""
    path, _ = _choose(op, (votes,), impl)
    return path and path.run


def choose(op: str, *operands: Votes | Tensor, impl: str = "auto") -> tuple[str, str]:
    """Name of the implementation of an operator that would run on these operands, and the reason.

    Args:
        op: name of the operator, such as "em_routing".
        operands: votes of a routing, as tensor or lazy; or input and weight of a convolution.
        impl: name of an implementation, or "auto".

    Returns:
        The name of the implementation, and the reason in words.

    Raises:
        ValueError: `impl` is unknown, or chosen by name and not usable.
    """
    if op != "conv2d":
        operands = (as_votes(operands[0]),)
    path, reason = _choose(op, operands, impl)
    return (path.impl if path else "reference"), reason


def explain(op: str, *operands: Votes | Tensor, impl: str = "auto") -> str:
    """One sentence: which implementation of `op` runs on these operands, and why; as `choose`."""
    name, reason = choose(op, *operands, impl=impl)
    return f"{op} runs as {name!r} ({reason})"


def implementations(op: str) -> list[str]:
    """Names of the implementations of an operator, "auto" and "reference" first."""
    return ["auto", "reference", *(path.impl for path in registry.PATHS[op])]


def _checked_votes(
    votes: Votes | Tensor,
    activation: Tensor | None,
    bias: Tensor | None,
    want_coupling: bool,
) -> Votes:
    """Votes for one call, with operands that fit each other; a tensor becomes `DenseVotes`."""
    lazy_votes = as_votes(votes, activation, None if bias is None else full_precision(bias))
    if isinstance(votes, Tensor):
        return lazy_votes.bind(replace(lazy_votes.context, needs_coupling=want_coupling))
    if isinstance(lazy_votes, ProductVotes):
        _check_products(lazy_votes)
    return lazy_votes


def _check_products(votes: ProductVotes) -> None:
    """Raise where poses, activations and matrices do not fit each other."""
    pose, activation = votes.children
    check_floating(
        pose=pose,
        activation=activation,
        weight=votes.weight,
        shift=votes.shift,
        bias=votes.bias,
    )
    num_matrices = len(votes.weight)
    if votes.count % num_matrices:
        raise ArgumentError(
            "weight", f"expected matrices for {votes.count} children, got {num_matrices}"
        )
    inner = votes.weight.shape[2]
    if pose.shape[-1] % inner:
        raise ArgumentError(
            "pose",
            f"expected in_dim to be a multiple of {inner}, as in weight, got {pose.shape[-1]}",
        )
    if pose.shape[:-1] != activation.shape:
        raise ArgumentError(
            "activation",
            f"expected the poses' {list(pose.shape[:-1])}, got {list(activation.shape)}",
        )


def _choose(op: str, operands: tuple[Any, ...], impl: str) -> tuple[registry.FastPath | None, str]:
    """The fast path that would run on these operands, None for the reference, and the reason."""
    check_known("impl", impl, IMPLS)
    if impl == "reference":
        return None, "asked for by name"
    if impl == "auto" and torch.compiler.is_exporting():
        return None, "an exported program consists of torch's own operations"
    if is_transforming():
        if impl == "auto":
            return None, "torch.func transforms see through torch's own operations alone"
        raise ArgumentError(
            "impl",
            f"{impl!r} cannot run {op} within torch.func transforms; 'auto' takes the reference",
        )

    reasons = []
    for path in registry.PATHS[op]:
        if impl not in ("auto", path.impl):
            continue
        obstacle = path.obstacle(*operands)
        if obstacle is None and impl == "auto":
            obstacle = path.drawback(*operands)
        if obstacle is None:
            return path, path.reason
        reasons.append(f"{path.impl}: {obstacle}")
    if impl == "auto":
        return None, "; ".join(reasons)
    explanation = reasons[0] if reasons else f"it has {', '.join(implementations(op)[1:])}"
    raise ArgumentError("impl", f"{impl!r} cannot run {op} here ({explanation})")

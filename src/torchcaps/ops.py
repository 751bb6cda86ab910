"""The dispatcher and nothing else: which implementation runs, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps import functional
from torchcaps.errors import UnknownNameError, check_range, check_shape
from torchcaps.functional import routed as reference
from torchcaps.functional.squash import full_precision
from torchcaps.kernels import support
from torchcaps.kernels.cpu import dynamic as cpu_dynamic
from torchcaps.kernels.cpu import dynamic_numba as numba_dynamic
from torchcaps.kernels.cpu import given as cpu_given
from torchcaps.kernels.triton import dynamic as triton_dynamic
from torchcaps.types import Routed

Impl = Literal["auto", "reference", "cpu", "numba", "triton"]

IMPLS = get_args(Impl)

# Fast paths of each operator, best first; "auto" takes the first that is usable and worth it, else the reference.
_FAST: dict[str, dict[str, Callable[..., support.Support]]] = {
    "dynamic_routing": {"cpu": support.cpu_dynamic_routing},
    "routed_dynamic": {
        "numba": support.numba_routed_dynamic,
        "cpu": support.cpu_routed_dynamic,
        "triton": support.triton_routed_dynamic,
    },
}
_ROUTED: dict[str, Any] = {
    "numba": numba_dynamic.routed_dynamic,
    "cpu": cpu_dynamic.routed_dynamic,
    "triton": triton_dynamic.routed_dynamic,
}


def routed_dynamic(
    pose: Float[Tensor, "batch children in_dim"],
    weight: Float[Tensor, "children parents dim in_dim"],
    bias: Float[Tensor, "parents dim"] | None = None,
    *,
    iterations: int = 3,
    leaky: bool = False,
    detach: bool = False,
    want_coupling: bool = False,
    impl: Impl = "auto",
) -> Routed:
    """Linear votes, then routing by agreement, by the fastest implementation that can take these tensors.

    Args:
        pose: `[batch, children, in_dim]`.
        weight: `[children, parents, dim, in_dim]`.
        bias: `[parents, dim]` or None.
        iterations: at least 1.
        leaky: see `functional.dynamic_routing`.
        detach: see `functional.dynamic_routing`.
        want_coupling: return the coupling `[batch, children, parents]`; otherwise a fast path returns None there.
        impl: "auto", "reference", "cpu" (blocked torch operations), "numba" (compiled loops) or "triton" (GPU). Asked
            for by name, an implementation works or raises its reason.

    Raises:
        ValueError: for shapes that do not fit, or an implementation that cannot take these tensors.
        NotImplementedError: when a second derivative is asked of a fast path.
    """
    children, parents, dim, in_dim = weight.shape
    check_shape("pose", pose, ("batch", "children", "in_dim"), children=children, in_dim=in_dim)
    if bias is not None:
        check_shape("bias", bias, ("parents", "dim"), parents=parents, dim=dim)
    check_range("iterations", iterations, low=1)
    chosen, _ = choose("routed_dynamic", pose, weight, bias, impl=impl)
    if chosen == "reference":
        return reference.routed_dynamic(pose, weight, bias, iterations=iterations, leaky=leaky, detach=detach)
    v, length, coupling, _ = _ROUTED[chosen](pose, weight, bias, iterations, leaky, detach, want_coupling)
    return Routed(v, length, coupling if want_coupling else None)


def dynamic_routing(
    votes: Float[Tensor, "*batch children parents dim"],
    iterations: int = 3,
    *,
    bias: Float[Tensor, "parents dim"] | None = None,
    leaky: bool = False,
    detach: bool = False,
    want_coupling: bool = False,
    impl: Impl = "auto",
) -> Routed:
    """`functional.dynamic_routing` of given votes, by the fastest implementation that can take them.

    Args:
        votes: `[batch, *space, children, parents, dim]`; half precision is computed in float32.
        iterations: at least 1.
        bias: `[parents, dim]` or None.
        leaky: see `functional.dynamic_routing`.
        detach: see `functional.dynamic_routing`.
        want_coupling: return the coupling; otherwise a fast path returns None there.
        impl: "auto", "reference" or "cpu".

    Raises:
        ValueError: for votes without these axes, or an implementation that cannot take them.
        NotImplementedError: when a second derivative is asked of a fast path.
    """
    check_shape("votes", votes, ("*batch", "children", "parents", "dim"))
    check_range("iterations", iterations, low=1)
    if bias is not None:
        check_shape("bias", bias, ("parents", "dim"), parents=votes.shape[-2], dim=votes.shape[-1])
        bias = full_precision(bias)
    votes = full_precision(votes)
    chosen, _ = choose("dynamic_routing", votes, bias, impl=impl)
    if chosen == "reference":
        return functional.dynamic_routing(votes, iterations, bias=bias, leaky=leaky, detach=detach)
    lead = votes.shape[:-3]
    v, length, coupling, _ = cpu_given.dynamic_routing(
        votes.flatten(0, -4), bias, iterations, leaky, detach, want_coupling
    )
    return Routed(
        v.unflatten(0, lead), length.unflatten(0, lead), coupling.unflatten(0, lead) if want_coupling else None
    )


def choose(op: str, *tensors: Tensor | None, impl: str = "auto") -> tuple[str, str]:
    """Name of the implementation of `op` that would run on these tensors, and the reason in words.

    Raises:
        ValueError: if `impl` is unknown, or asked for by name and not usable.
    """
    if impl not in IMPLS:
        raise UnknownNameError("impl", impl, IMPLS)
    if impl == "reference":
        return "reference", "asked for by name"
    if impl == "auto" and torch.compiler.is_exporting():
        return "reference", "an exported program consists of torch's own operations"
    reasons = []
    for name, verify in _FAST[op].items():
        if impl in ("auto", name):
            usable, reason, worth_it = verify(*tensors)
            if usable and (worth_it or impl == name):
                return name, reason
            reasons.append(f"{name}: {reason}")
    if impl != "auto":
        known = f"it has {', '.join(('reference', *_FAST[op]))}"
        raise ValueError(f"impl: {impl!r} cannot run {op} here ({'; '.join(reasons) or known})")
    return "reference", "; ".join(reasons)


def explain(op: str, *tensors: Tensor | None, impl: str = "auto") -> str:
    """One sentence: which implementation of `op` runs on these tensors, and why."""
    name, reason = choose(op, *tensors, impl=impl)
    return f"{op} runs as {name!r} ({reason})"


def operators() -> list[str]:
    """Names of the operators that have more than one implementation."""
    return sorted(_FAST)

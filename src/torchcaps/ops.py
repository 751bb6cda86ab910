"""The dispatcher and nothing else: which implementation runs, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor

from torchcaps.errors import UnknownNameError, check_range, check_shape
from torchcaps.functional import routed as reference
from torchcaps.kernels import support
from torchcaps.kernels.cpu import dynamic as cpu_dynamic
from torchcaps.types import Routed

Impl = Literal["auto", "reference", "cpu"]

# Fast paths of each operator, best first; "auto" takes the first that is usable, else the reference.
_FAST: dict[str, dict[str, Callable[..., support.Support]]] = {"routed_dynamic": {"cpu": support.cpu_routed_dynamic}}


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
        impl: "auto", "reference" or "cpu". Asked for by name, an implementation works or raises its reason.

    Raises:
        ValueError: for shapes that do not fit, or an implementation that cannot take these tensors.
    """
    children, parents, dim, in_dim = weight.shape
    check_shape("pose", pose, ("batch", "children", "in_dim"), children=children, in_dim=in_dim)
    if bias is not None:
        check_shape("bias", bias, ("parents", "dim"), parents=parents, dim=dim)
    check_range("iterations", iterations, low=1)
    chosen, _ = choose("routed_dynamic", pose, weight, bias, impl=impl)
    if chosen == "cpu":
        v, length, coupling, _ = cpu_dynamic.routed_dynamic(pose, weight, bias, iterations, leaky, detach, want_coupling)
        return Routed(v, length, coupling if want_coupling else None)
    return reference.routed_dynamic(pose, weight, bias, iterations=iterations, leaky=leaky, detach=detach)


def choose(op: str, *tensors: Tensor | None, impl: str = "auto") -> tuple[str, str]:
    """Name of the implementation of `op` that would run on these tensors, and the reason in words.

    Raises:
        ValueError: if `impl` is unknown, or asked for by name and not usable.
    """
    fast = _FAST[op]
    if impl not in get_args(Impl):
        raise UnknownNameError("impl", impl, get_args(Impl))
    if impl == "reference":
        return "reference", "asked for by name"
    reasons = []
    for name, verify in fast.items():
        if impl in ("auto", name):
            usable, reason = verify(*tensors)
            if usable:
                return name, reason
            reasons.append(f"{name}: {reason}")
    if impl != "auto":
        raise ValueError(f"impl: {impl!r} cannot run {op} here ({'; '.join(reasons)})")
    return "reference", "; ".join(reasons)


def explain(op: str, *tensors: Tensor | None, impl: str = "auto") -> str:
    """One sentence: which implementation of `op` runs on these tensors, and why."""
    name, reason = choose(op, *tensors, impl=impl)
    return f"{op} runs as {name!r} ({reason})"


def operators() -> list[str]:
    """Names of the operators that have more than one implementation."""
    return sorted(_FAST)

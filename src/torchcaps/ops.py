"""The dispatcher and nothing else: which implementation runs, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from torchcaps import functional
from torchcaps.errors import UnknownNameError, check_floating, check_range, check_shape
from torchcaps.functional import routed as reference
from torchcaps.functional.routing.em import temperatures
from torchcaps.functional.squash import full_precision
from torchcaps.functional.windows import CONVENTIONS, Convention
from torchcaps.kernels import support
from torchcaps.kernels.cpu import convolution as cpu_convolution
from torchcaps.kernels.cpu import dynamic as cpu_dynamic
from torchcaps.kernels.cpu import dynamic_numba as numba_dynamic
from torchcaps.kernels.cpu import em as cpu_em
from torchcaps.kernels.cpu import em_numba as numba_em
from torchcaps.kernels.cpu import given as cpu_given
from torchcaps.kernels.dynamic import triton as triton_dynamic
from torchcaps.types import Routed

Impl = Literal["auto", "reference", "cpu", "numba", "triton"]

IMPLS = get_args(Impl)

# Fast paths of each operator, best first; "auto" takes the first that is usable and worth it, else the reference.
_FAST: dict[str, dict[str, Callable[..., support.Support]]] = {
    "conv2d": {"cpu": support.cpu_conv2d},
    "dynamic_routing": {"cpu": support.cpu_dynamic_routing},
    "routed_dynamic": {
        "numba": support.numba_routed_dynamic,
        "cpu": support.cpu_routed_dynamic,
        "triton": support.triton_routed_dynamic,
    },
    "routed_em": {"numba": support.numba_routed_em, "cpu": support.cpu_routed_em},
}
# Tensors of the published networks at batch 128, for `survey`.
_TYPICAL: dict[str, tuple[tuple[int, ...], ...]] = {
    "conv2d": ((128, 256, 20, 20), (256, 256, 9, 9)),
    "dynamic_routing": ((128, 1152, 10, 16),),
    "routed_dynamic": ((128, 1152, 8), (1152, 10, 16, 8)),
    "routed_em": ((64, 14, 14, 32, 16), (64, 14, 14, 32), (288, 32, 4, 4), (32,), (32,)),
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
    check_floating(pose=pose, weight=weight, bias=bias)
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
        impl: "auto", "reference", "numba" or "cpu".

    Raises:
        ValueError: for votes without these axes, or an implementation that cannot take them.
        NotImplementedError: when a second derivative is asked of a fast path.
    """
    check_shape("votes", votes, ("*batch", "children", "parents", "dim"))
    check_floating(votes=votes, bias=bias)
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


def routed_em(
    pose: Float[Tensor, "batch height width n in_dim"],
    activation: Float[Tensor, "batch height width n"],
    weight: Float[Tensor, "i parents inner outer"],
    beta_u: Float[Tensor, " parents"],
    beta_a: Float[Tensor, " parents"],
    shift: Float[Tensor, "i parents dim"] | None = None,
    *,
    windows: functional.Windows,
    iterations: int = 3,
    inverse_temperature: float | Sequence[float] = 0.01,
    convention: Convention = "all",
    want_coupling: bool = False,
    impl: Impl = "auto",
) -> Routed:
    """Matrix votes within windows, then EM routing, by the fastest implementation that can take these tensors.

    Args:
        pose: `[batch, height, width, n, rows * inner]`.
        activation: `[batch, height, width, n]` in [0, 1].
        weight: `[K * K * n, parents, inner, outer]`.
        beta_u: `[parents]`.
        beta_a: `[parents]`.
        shift: added to the votes, `[K * K * n or 1, parents or 1, rows * outer]`, or None.
        windows: how they lie on the map.
        iterations: at least 1.
        inverse_temperature: see `functional.em_routing`.
        convention: see `functional.Windows.share`.
        want_coupling: return the coupling; otherwise a fast path returns None there.
        impl: "auto", "reference", "cpu" (blocked torch operations) or "numba" (compiled loops).

    Raises:
        ValueError: for shapes that do not fit, or an implementation that cannot take these tensors.
        NotImplementedError: when a second derivative is asked of a fast path.
    """
    children, parents, inner, _ = weight.shape
    axes = ("batch", "height", "width", "n", "in_dim")
    check_shape("pose", pose, axes, height=windows.height, width=windows.width, n=children // windows.kernel**2)
    check_shape("activation", activation, axes[:-1], **dict(zip(axes, pose.shape[:-1], strict=False)))
    check_floating(pose=pose, activation=activation, weight=weight, shift=shift)
    for name, beta in (("beta_u", beta_u), ("beta_a", beta_a)):
        check_shape(name, beta, ("parents",), parents=parents)
    if pose.shape[-1] % inner:
        raise ValueError(f"pose: expected in_dim to be a multiple of {inner}, as weight has it, got {pose.shape[-1]}")
    chosen, _ = choose("routed_em", pose, activation, weight, beta_u, beta_a, shift, impl=impl)
    if chosen == "reference":
        return functional.routed_em(
            pose, activation, weight, beta_u, beta_a, shift, windows=windows, iterations=iterations,
            inverse_temperature=inverse_temperature, convention=convention,
        )  # fmt: skip
    if convention not in CONVENTIONS:
        raise UnknownNameError("convention", convention, CONVENTIONS)
    kind = full_precision(weight).dtype
    tensors = (None if x is None else x.to(kind) for x in (pose, activation, weight, beta_u, beta_a, shift))
    schedule = temperatures(iterations, inverse_temperature)
    route: Any = numba_em.routed_em if chosen == "numba" else cpu_em.routed_em
    v, length, coupling, *_ = route(*tensors, windows.kernel, windows.stride, convention, schedule, want_coupling)
    return Routed(v, length, coupling if want_coupling else None)


def conv2d(
    x: Float[Tensor, "batch channels height width"],
    weight: Float[Tensor, "outputs channels kernel_height kernel_width"],
    bias: Float[Tensor, " outputs"] | None = None,
    stride: int | tuple[int, int] = 1,
    *,
    impl: Impl = "auto",
) -> Float[Tensor, "batch outputs out_height out_width"]:
    """`torch.nn.functional.conv2d` without padding; on a CPU, large kernels in the frequency domain.

    The 9x9 convolution of primary capsules is most of the arithmetic of a capsule network. In the frequency domain it
    takes a fifth of the products, at the same precision in float32.

    Args:
        x: `[batch, channels, height, width]`.
        weight: `[outputs, channels, kernel_height, kernel_width]`.
        bias: `[outputs]` or None.
        stride: in pixels, at least 1.
        impl: "auto", "reference" (torch's own) or "cpu" (in the frequency domain, where that takes fewer products).

    Raises:
        ValueError: for shapes that do not fit, or an implementation that cannot take these tensors.
        NotImplementedError: when a second derivative is asked of "cpu".
    """
    _, channels, rows, columns = weight.shape
    check_shape("x", x, ("batch", "channels", "height", "width"), channels=channels)
    check_floating(x=x, weight=weight)
    for name, size, least in (("height", x.shape[2], rows), ("width", x.shape[3], columns)):
        check_range(f"{name} of x", size, low=least)
    steps = (stride, stride) if isinstance(stride, int) else stride
    for step in steps:
        check_range("stride", step, low=1)
    if choose("conv2d", x, weight, impl=impl)[0] == "reference":
        return F.conv2d(x, weight, bias, steps)
    if torch.is_autocast_enabled("cpu"):
        kind = torch.get_autocast_dtype("cpu")
        x, weight, bias = x.to(kind), weight.to(kind), None if bias is None else bias.to(kind)
    return cpu_convolution.conv2d(x, weight, bias, steps)


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
    if torch._C._are_functorch_transforms_active():
        if impl != "auto":
            raise ValueError(f"impl: {impl!r} cannot run {op} within torch.func transforms; 'auto' takes the reference")
        return "reference", "torch.func transforms see through torch's own operations alone"
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


def survey(device: torch.device) -> dict[str, tuple[str, str]]:
    """For each operator, what "auto" takes on a device for layers of the published sizes, and why."""
    zero = torch.zeros((), device=device)  # seen everywhere: the tensors take no memory
    return {op: choose(op, *(zero.expand(shape) for shape in shapes)) for op, shapes in _TYPICAL.items()}


def operators() -> list[str]:
    """Names of the operators that have more than one implementation."""
    return sorted(_FAST)


def implementations(op: str) -> list[str]:
    """Names of the implementations of an operator, "auto" and "reference" first."""
    return ["auto", "reference", *_FAST[op]]

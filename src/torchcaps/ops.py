"""The dispatcher and nothing else: which implementation runs, and why."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from torchcaps import (
    functional,
    kernels as kernels,  # every fast path registers itself
)
from torchcaps.errors import (
    ArgumentError,
    UnknownNameError,
    check_floating,
    check_range,
    check_shape,
)
from torchcaps.functional.fields import ConvField, DenseField
from torchcaps.functional.routing.em import Beta, temperatures
from torchcaps.functional.squash import full_precision
from torchcaps.functional.votes import AnyVotes, Bias, DenseMapVotes, ProductVotes, Votes, as_votes
from torchcaps.kernels import registry
from torchcaps.kernels.samples import by_samples
from torchcaps.kernels.support import recomputable
from torchcaps.types import Capsules, Routed

Impl = Literal["auto", "reference", "blocked", "numba", "triton"]
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
    """`functional.dynamic_routing`, by the fastest implementation that can take these votes; other arguments as there.

    Args:
        want_coupling: return the coupling of given votes; otherwise a fast path returns None there. Lazy votes say
            whether theirs is wanted.
        impl: "auto", "reference", "blocked" (torch operations on blocks of samples), "numba"
            (compiled loops) or "triton" (GPU). Asked for by name, an implementation works or raises its reason, a
            ValueError. The second derivative of a fast path is that of the reference.
    """
    check_range("iterations", iterations, low=1)
    votes = _checked_votes(votes, None, bias, want_coupling)
    if votes.bias is not None:
        check_shape("bias", votes.bias, ("parents", "dim"), parents=votes.parents, dim=votes.dim)
    if votes.context.is_uniform:  # the first iteration has equal couplings by itself
        votes = votes.bind(votes.context.without_fixed())
        iterations = 1
    path, _ = _choose("dynamic_routing", (votes,), impl)
    run = functional.dynamic_routing if path is None else path.run
    return run(votes, iterations=iterations, leaky=leaky, detach=detach)


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
    """`functional.em_routing`, by the fastest implementation that can take these votes: "blocked" or "numba" lazy ones.

    Arguments are as there, but for `impl`; see `dynamic_routing`, and for its errors.
    """
    heat = temperatures(iterations, inverse_temperature)
    votes = _checked_votes(votes, activation, None, True)
    for name, beta in (("beta_u", beta_u), ("beta_a", beta_a)):
        if isinstance(beta, Tensor) and beta.dim() > 0:
            check_shape(name, beta, ("parents",), parents=votes.parents)
    if votes.context.is_uniform:  # every M-step is the first one; the last temperature counts
        votes = votes.bind(votes.context.without_fixed())
        heat = heat[-1:]
    path, _ = _choose("em_routing", (votes,), impl)
    if path is None:
        return functional.em_routing(votes, None, beta_u, beta_a, len(heat), heat)
    return path.run(votes, beta_u=beta_u, beta_a=beta_a, temperatures=heat)


def conv2d(
    x: Float[Tensor, "batch channels height width"],
    weight: Float[Tensor, "outputs channels rows columns"],
    bias: Float[Tensor, " outputs"] | None = None,
    stride: int | tuple[int, int] = 1,
    *,
    impl: Impl = "auto",
) -> Float[Tensor, "batch outputs out_height out_width"]:
    """`torch.nn.functional.conv2d` without padding; on a CPU, large kernels in the frequency domain.

    The 9x9 convolution of primary capsules is most of the arithmetic of a capsule network. In the frequency domain it
    takes a fifth of the products, at the same precision in float32. `impl` is "auto", "reference" (torch's own) or
    "blocked" (in the frequency domain, where that takes fewer products). ValueError for shapes that do not fit, and as
    `dynamic_routing`.
    """
    _, channels, rows, columns = weight.shape
    check_shape("x", x, ("batch", "channels", "height", "width"), channels=channels)
    check_floating(x=x, weight=weight)
    for name, size, least in (("height", x.shape[2], rows), ("width", x.shape[3], columns)):
        check_range(f"{name} of x", size, low=least)
    steps = (stride, stride) if isinstance(stride, int) else stride
    for step in steps:
        check_range("stride", step, low=1)
    path, _ = _choose("conv2d", (x, weight), impl)
    return (F.conv2d if path is None else path.run)(x, weight, bias, steps)


def in_blocks(
    route: Callable[..., tuple[Any, ...]], votes: Votes, *others: Tensor | None
) -> tuple[Any, ...]:
    """`route(votes, *others)`, for a routing without a fast path of its own: the votes of a batch are never stored.

    Where votes are products of poses and matrices, a block of samples is routed at a time, and its votes are made once
    more for the gradient. `route` gives tensors `[batch, ...]`, the couplings last: None unless somebody asked for
    them. The others, tensors `[batch, ...]` or None, go in blocks too.
    """
    whole = (
        torch.compiler.is_exporting()
        or torch._C._are_functorch_transforms_active()
        or not recomputable(votes).usable
    )
    if whole or len(votes.children.pose) == 0:
        return route(votes, *others)
    return by_samples(route, votes, *others)


def fastest(op: str, votes: Votes, impl: Impl = "auto") -> Callable[..., Routed] | None:
    """The fast path of a routing for these votes, None for the reference; errors as of `choose`."""
    path, _ = _choose(op, (votes,), impl)
    return path and path.run


def choose(op: str, *operands: Votes | Tensor, impl: str = "auto") -> tuple[str, str]:
    """Name of the implementation of `op` that would run on these operands, and the reason in words.

    Operands are the votes of a routing, lazy or given, or map and weight of a convolution. ValueError if `impl` is
    unknown, or asked for by name and not usable.
    """
    path, reason = _choose(op, operands if op == "conv2d" else (as_votes(operands[0]),), impl)
    return ("reference" if path is None else path.impl), reason


def explain(op: str, *operands: Votes | Tensor, impl: str = "auto") -> str:
    """One sentence: which implementation of `op` runs on these operands, and why."""
    name, reason = choose(op, *operands, impl=impl)
    return f"{op} runs as {name!r} ({reason})"


def survey(device: torch.device) -> dict[str, tuple[str, str]]:
    """For each operator, what "auto" takes on a device for layers of the published sizes, and why."""
    zero = torch.zeros((), device=device)  # seen everywhere: the tensors take no memory

    def votes(pose: tuple[int, ...], weight: tuple[int, ...], field: functional.Field) -> Votes:
        children = Capsules(zero.expand(pose), zero.expand(pose[:-1]))
        return ProductVotes(children, field, zero.expand(weight))

    typical: dict[str, tuple[Any, ...]] = {
        "conv2d": (zero.expand(128, 256, 20, 20), zero.expand(256, 256, 9, 9)),
        "dynamic_routing": (votes((128, 1152, 8), (1152, 10, 8, 16), DenseField()),),
        "em_routing": (votes((64, 14, 14, 32, 16), (288, 32, 4, 4), ConvField(14, 14, 3, 2)),),
        "map_routing": (DenseMapVotes(zero.expand(1, 8, 8, 32, 64, 64)),),
    }
    return {op: choose(op, *operands) for op, operands in typical.items()}


def implementations(op: str) -> list[str]:
    """Names of the implementations of an operator, "auto" and "reference" first."""
    names = [path.impl for path in registry.PATHS[op]]
    return ["auto", "reference", *names]


def _checked_votes(
    votes: Votes | Tensor, activation: Tensor | None, bias: Tensor | None, want_coupling: bool
) -> Votes:
    """Votes for one call whose shapes fit; a tensor of votes becomes such."""
    if isinstance(votes, Tensor):
        bias = None if bias is None else full_precision(bias)
        votes = as_votes(votes, activation, bias)
        return votes.bind(votes.context._replace(needs_coupling=want_coupling))
    votes = as_votes(votes, activation, bias)
    if isinstance(votes, ProductVotes):
        pose, activation = votes.children
        check_floating(
            pose=pose,
            activation=activation,
            weight=votes.weight,
            shift=votes.shift,
            bias=votes.bias,
        )
        if votes.count % len(votes.weight):
            raise ArgumentError(
                "weight", f"expected matrices for {votes.count} children, got {len(votes.weight)}"
            )
        inner, in_dim = votes.weight.shape[2], pose.shape[-1]
        if in_dim % inner:
            raise ArgumentError(
                "pose",
                f"expected in_dim to be a multiple of {inner}, as weight has it, got {in_dim}",
            )
        if pose.shape[:-1] != activation.shape:
            raise ArgumentError(
                "activation",
                f"expected the poses' {list(pose.shape[:-1])}, got {list(activation.shape)}",
            )
    return votes


def _choose(op: str, operands: tuple[Any, ...], impl: str) -> tuple[registry.FastPath | None, str]:
    """The fast path that would run on these operands, None for the reference, and the reason in words."""
    if impl not in IMPLS:
        raise UnknownNameError("impl", impl, IMPLS)
    if impl == "reference":
        return None, "asked for by name"
    if impl == "auto" and torch.compiler.is_exporting():
        return None, "an exported program consists of torch's own operations"
    if torch._C._are_functorch_transforms_active():
        if impl != "auto":
            raise ArgumentError(
                "impl",
                f"{impl!r} cannot run {op} within torch.func transforms; 'auto' takes the reference",
            )
        return None, "torch.func transforms see through torch's own operations alone"
    paths, reasons = registry.PATHS[op], []
    names = [path.impl for path in paths]
    for path in paths:
        if impl in ("auto", path.impl):
            usable, reason, worth_it = path.supports(*operands)
            if usable and (worth_it or impl != "auto"):
                return path, reason
            reasons.append(f"{path.impl}: {reason}")
    if impl != "auto":
        known = f"it has {', '.join(('reference', *names))}"
        raise ArgumentError(
            "impl", f"{impl!r} cannot run {op} here ({'; '.join(reasons) or known})"
        )
    return None, "; ".join(reasons)

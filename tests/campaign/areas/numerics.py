"""Finite numbers in, finite numbers out, in value and gradient: huge, tiny, zero, of every type and small shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from campaign.core import Case
from campaign.edges import EDGES
from torchcaps import functional as F, nn as caps, ops
from torchcaps.types import Capsules

TESTS = {"functions": 700, "layers": 400, "fast paths": 200, "types": 100, "edges": 0}
TYPES = ("float32", "float32", "float64", "float16", "bfloat16")
TOP = {
    "float16": 4.8,
    "bfloat16": 30.0,
    "float32": 30.0,
    "float64": 150.0,
}  # largest exponents of ten
FILLS = ("normal", "zero", "denormal", "one huge", "mixed", "equal", "scaled", "scaled")
UNREAL = ("int64", "int32", "uint8", "bool", "complex64")
ROUTERS = ("dynamic", "uniform", "em", "random")


class Draw:
    """Tensors of a case: `x` hostile, `w` ordinary, `a` activations in [0, 1]; those that a gradient is wanted of."""

    def __init__(self, case: Case) -> None:
        self.case, self.dtype = case, getattr(torch, case["dtype"])
        self.generator = torch.Generator().manual_seed(case["seed"])
        self.leaves: list[Tensor] = []
        self.batch, self.children, self.parents, self.dim = case["shape"]

    def leaf(self, tensor: Tensor) -> Tensor:
        """In the type of the case; for a gradient."""
        found = tensor.to(self.dtype).requires_grad_()
        self.leaves.append(found)
        return found

    def normal(self, *shape: int) -> Tensor:
        """In float64."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def w(self, *shape: int) -> Tensor:
        """Weights of an ordinary size."""
        return self.leaf(self.normal(*shape))

    def a(self, *shape: int) -> Tensor:
        """Activations; exact zeros and ones among them, but where two paths are compared."""
        drawn = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        return self.leaf(
            0.05 + 0.9 * drawn
            if self.case["test"] == "fast paths"
            else (1.5 * drawn - 0.25).clamp(0, 1)
        )

    def x(self, *shape: int, half: float = math.inf) -> Tensor:
        """Any finite numbers; in half precision up to `half`."""
        x, power, fill = self.normal(*shape), 10.0 ** self.case["exponent"], self.case["fill"]
        tiny = torch.finfo(self.dtype).smallest_normal
        spread = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        if fill == "one huge" and x.numel():
            x.view(-1)[int(spread.view(-1)[0] * x.numel())] = power
        made = {
            "zero": 0 * x,
            "denormal": x * tiny / 8,
            "mixed": x * 10 ** ((2 * spread - 1) * abs(self.case["exponent"])),
            "equal": torch.full_like(x, power),
            "scaled": x * power,
        }
        largest = min(
            10.0 ** TOP[self.case["dtype"]], half if self.dtype == torch.float16 else math.inf
        )
        return self.leaf(made.get(fill, x).clamp(-largest, largest))


def votes(d: Draw) -> tuple[int, ...]:
    """Their shape."""
    return d.batch, d.children, d.parents, d.dim


def em(d: Draw, route: Callable[..., Any], *first: Tensor, **options: Any) -> Any:
    """EM routing with costs of its own."""
    return route(
        *first, d.w(d.parents), d.w(d.parents), inverse_temperature=d.case["temperature"], **options
    )


def windowed(d: Draw, route: Callable[..., Any], x: Callable[..., Tensor], **options: Any) -> Any:
    """Matrix votes within windows of 2 of a map of 3."""
    space = d.batch, 3, 3, d.children
    children, weight = Capsules(x(*space, 4), d.a(*space)), d.w(4 * d.children, d.parents, 2, 2)
    votes = F.ProductVotes(children, F.ConvField(3, 3, 2), weight)
    return em(d, route, votes, None, iterations=d.case["iterations"], **options)


def connected(d: Draw, x: Callable[..., Tensor]) -> F.Votes:
    """Linear votes of children of 3 dimensions."""
    children = Capsules(x(d.batch, d.children, 3), torch.ones(d.batch, d.children))
    weight = d.w(d.children, d.parents, d.dim, 3)
    return F.ProductVotes(children, F.DenseField(), weight.transpose(2, 3))


def iterated(d: Draw) -> dict[str, Any]:
    """Options of dynamic routing."""
    return {"iterations": d.case["iterations"], "leaky": d.case["flag"]}


FUNCTIONS: dict[str, Callable[[Draw], Any]] = {
    "squash": lambda d: F.squash(d.x(d.batch, d.children, d.dim)),
    "squash with length": lambda d: F.squash_with_length(d.x(d.batch, d.children, d.dim)),
    "safe norm": lambda d: F.safe_norm(d.x(d.batch, d.children, d.dim)),
    "dynamic": lambda d: F.dynamic_routing(d.x(*votes(d)), **iterated(d)),
    "dynamic with bias": lambda d: F.dynamic_routing(
        d.x(*votes(d)), bias=d.w(d.parents, d.dim), **iterated(d)
    ),
    "uniform": lambda d: F.uniform_routing(d.x(*votes(d))),
    "random": lambda d: F.random_routing(d.x(*votes(d)), 3),
    "em": lambda d: em(
        d, F.em_routing, d.x(*votes(d)), d.a(*votes(d)[:2]), iterations=d.case["iterations"]
    ),
    "linear votes then em": lambda d: em(
        d,
        F.em_routing,
        F.linear_votes(d.x(d.batch, d.children, 3), d.w(d.children, d.parents, d.dim, 3)),
        d.a(d.batch, d.children),
        iterations=d.case["iterations"],
    ),
    "linear votes then dynamic": lambda d: F.dynamic_routing(
        F.linear_votes(d.x(d.batch, d.children, 3), d.w(d.children, d.parents, d.dim, 3))
    ),
    "routed dynamic": lambda d: ops.dynamic_routing(connected(d, d.x), **iterated(d)),
    "given votes": lambda d: ops.dynamic_routing(d.x(*votes(d)), **iterated(d)),
    "routed em": lambda d: windowed(d, ops.em_routing, d.x),
    "routed em, reference": lambda d: windowed(d, F.em_routing, d.x),
    "margin loss": lambda d: F.margin_loss(
        d.a(d.batch + 1, d.parents), torch.zeros(d.batch + 1).long()
    ),
    "spread loss": lambda d: F.spread_loss(
        d.a(d.batch + 1, d.parents), torch.zeros(d.batch + 1).long(), 0.9
    ),
    "reconstruction loss": lambda d: F.reconstruction_loss(
        d.a(d.batch + 1, 1, 3, 3), d.a(d.batch + 1, 1, 3, 3)
    ),
    "standardize": lambda d: F.standardize(d.x(d.batch, 1, 4, 5)),
}


def layer(d: Draw, module: nn.Module, *shape: int) -> Any:
    """A layer on capsules of this shape."""
    module = module.to(d.dtype) if d.case["flag"] else module
    d.leaves += list(module.parameters())
    pose = d.x(*shape)
    return module(Capsules(pose, d.a(*shape[:-1])))


def on_images(d: Draw, module: nn.Module, *shape: int) -> Any:
    """A layer on a feature map, in its own type."""
    module = module.to(d.dtype)
    d.leaves += list(module.parameters())
    return module(
        d.x(*shape, half=1000.0)
    )  # torch's own convolution gives half precision, which ends at 65504


LAYERS: dict[str, Callable[[Draw], Any]] = {
    **{
        f"linear, {name}": lambda d, name=name: layer(
            d, caps.CapsuleLinear(d.children, 3, d.parents, d.dim, name), d.batch, d.children, 3
        )
        for name in ROUTERS
    },
    "linear with bias": lambda d: layer(
        d,
        caps.CapsuleLinear(d.children, 3, d.parents, d.dim, bias=True, iterations=2),
        d.batch,
        d.children,
        3,
    ),
    "convolution": lambda d: layer(
        d, caps.ConvCaps(d.children, d.parents, 2), d.batch, 3, 4, d.children, 16
    ),
    "convolution, reference": lambda d: layer(
        d, caps.ConvCaps(d.children, d.parents, 2, impl="reference"), d.batch, 3, 4, d.children, 16
    ),
    "classes": lambda d: layer(
        d,
        caps.ClassCaps(d.children, d.parents, centers=([0.2, 0.8], [0.5])),
        d.batch,
        2,
        1,
        d.children,
        16,
    ),
    "primary": lambda d: on_images(
        d, caps.PrimaryCaps(2, d.parents, d.dim, kernel_size=3), d.batch, 2, 5, 6
    ),
    "matrix primary": lambda d: on_images(
        d, caps.MatrixPrimaryCaps(2, d.parents, 2), d.batch, 2, 3, 3
    ),
}
FAST: dict[str, tuple[tuple[str, ...], Callable[[Draw, str], Any]]] = {
    "routed dynamic": (
        ("blocked", "numba"),
        lambda d, impl: ops.dynamic_routing(connected(d, d.w), impl=impl, **iterated(d)),
    ),
    "given votes": (
        ("blocked",),
        lambda d, impl: ops.dynamic_routing(
            d.w(*votes(d)), impl=impl, want_coupling=True, **iterated(d)
        ),
    ),
    "routed em": (("blocked",), lambda d, impl: windowed(d, ops.em_routing, d.w, impl=impl)),
    "conv2d": (
        ("blocked",),
        lambda d, impl: ops.conv2d(
            d.w(d.batch, 8, 9, 10), d.w(8, 8, 4, 5), stride=d.case["iterations"], impl=impl
        ),
    ),
}

CALLS: dict[str, Any] = {
    "functions": FUNCTIONS,
    "layers": LAYERS,
    "fast paths": FAST,
    "types": ("dynamic", "uniform", "random", "em", "given votes"),
    "edges": EDGES,
}


def draw(test: str, random: Random) -> dict[str, Any]:
    """Which call, of which type, shape and size of numbers."""
    names = CALLS[test]
    dtype = random.choice({"fast paths": TYPES[:3], "types": UNREAL}.get(test, TYPES))
    top = TOP.get(dtype, 1.0)
    return {
        "call": random.choice(list(names)),
        "dtype": dtype,
        "fill": random.choice(FILLS),
        "exponent": round(random.uniform(-1.3 * top, top), 2),
        "flag": random.random() < 0.3,
        "shape": [random.choice((0, 1, 1, 2, 3)), *(random.randint(1, 5) for _ in range(3))],
        "iterations": random.randint(1, 4),
        "temperature": random.choice((0.001, 0.01, 0.3, 1.0, 5.0)),
        "impl": random.choice(("blocked",) * 9 + ("numba",)),  # compiling takes seconds
    }


def check(case: Case, folder: object) -> None:
    """Forward and backward."""
    torch.manual_seed(case["seed"])
    if case["test"] == "fast paths":
        alike(case)
    elif case["test"] == "types":
        refused(case)
    elif case["test"] == "edges":
        EDGES[case["name"]]()
    else:
        found, gradients = outcome(Draw(case), CALLS[case["test"]][case["call"]])
        for tensor in found:
            assert torch.isfinite(tensor).all(), f"the outcome of {case['call']!r} is not finite"
        for tensor in gradients:
            short = tensor.dtype == torch.float16  # ends at 65504: a gradient may well be larger
            good = not tensor.isnan().any() if short else torch.isfinite(tensor).all()
            assert good, f"the gradient of {case['call']!r}, {list(tensor.shape)}, is not finite"


def outcome(d: Draw, call: Callable[[Draw], Any]) -> tuple[list[Tensor], list[Tensor]]:
    """What comes out, and the gradients of all that went in."""
    made = call(d)
    outs = [made] if isinstance(made, Tensor) else [t for t in made if t is not None]
    loss = sum(
        (out * torch.randn(out.shape, generator=d.generator).to(out.dtype)).sum() for out in outs
    )
    return outs, [
        g for g in torch.autograd.grad(loss, d.leaves, allow_unused=True) if g is not None
    ]


def alike(case: Case) -> None:
    """A fast path and the reference, where numbers are ordinary."""
    implementations, call = FAST[case["call"]]
    impl = case["impl"] if case["impl"] in implementations else implementations[0]
    pairs = [
        outcome(Draw(case), lambda d, impl=impl: call(d, impl)) for impl in (impl, "reference")
    ]
    tolerance = 1e-7 if case["dtype"] == "float64" else 3e-3
    for what, fast, right in zip(("outcome", "gradient"), *pairs, strict=True):
        for a, b in zip(fast, right, strict=True):
            error = float((a - b).detach().abs().max()) if a.numel() else 0.0
            size = max(1.0, float(b.detach().abs().max()) if b.numel() else 0.0)
            assert error <= tolerance * size, (
                f"{impl}: the {what} of {case['call']!r} differs by {error / size:.2g}"
            )


def refused(case: Case) -> None:
    """Numbers that are not real: one error in one sentence that names the argument."""
    d = Draw(case | {"dtype": "float32", "fill": "normal", "exponent": 0})
    x = 3 * d.normal(*votes(d))
    d.leaf = lambda tensor: tensor.to(
        getattr(torch, case["dtype"]) if tensor.dim() == 4 else torch.float32
    )
    d.x = lambda *shape: d.leaf(x)
    try:
        FUNCTIONS[case["call"]](d)
    except (ValueError, TypeError) as error:
        assert len(str(error).splitlines()) == 1 and str(error).startswith("votes"), (
            f"not a sentence on votes: {error}"
        )
        return
    raise AssertionError(f"votes of {case['dtype']} were taken")

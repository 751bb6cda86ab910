"""Layers of lazy votes drawn from a seed, and fast paths held against the reference in value and every gradient."""

from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st

from torchcaps import ops
from torchcaps.functional import ConvField, ConvTransposeField, DenseField, ProductVotes
from torchcaps.kernels.support import HAS_NUMBA
from torchcaps.testing.compare import assert_close
from torchcaps.testing.random import seeded
from torchcaps.types import Capsules

FAST = {"dynamic": ["blocked"], "em": ["blocked", *(["numba"] if HAS_NUMBA else [])]}
NAMES = ("pose", "activation", "weight", "beta_u", "beta_a", "shift", "bias")


@dataclass
class Layer:
    """Votes of matrices: poses `[rows, inner]`, weights `[inner, outer]`; a linear layer has one row."""

    field: Any = field(default_factory=DenseField)
    batch: int = 3
    types: int = 6
    parents: int = 4
    matrices: tuple = (1, 3, 5)
    shift: tuple | None = None  # whether of its own for each child, for each parent
    bias: bool = False
    dtype: torch.dtype = torch.float64
    seed: int = 0
    scale: float = 1.0

    def tensors(self):
        """Leaves by name; None for what there is not."""
        generator = seeded(self.seed)

        def normal(*size):
            return torch.randn(size, generator=generator, dtype=torch.float64).to(self.dtype)

        rows, inner, outer = self.matrices
        i, j, dim = self.field.count(self.types), self.parents, rows * outer
        space = (self.batch, *space_of(self.field), self.types)
        shift = self.shift and (i if self.shift[0] else 1, j if self.shift[1] else 1, dim)
        made = (
            self.scale * normal(*space, rows * inner),
            torch.rand(space, generator=generator).to(self.dtype),
            normal(i, j, inner, outer) / inner**0.5,
            normal(j),
            normal(j),
            normal(*shift) if shift else None,
            normal(j, dim) if self.bias else None,
        )
        return {n: x if x is None else x.requires_grad_() for n, x in zip(NAMES, made, strict=True)}

    def votes(self, tensors):
        children = Capsules(tensors["pose"], tensors["activation"])
        return ProductVotes(
            children, self.field, tensors["weight"], tensors["shift"], tensors["bias"]
        )


def space_of(where):
    """Height and width of the map of a field."""
    return where.space if isinstance(where, DenseField) else (where.height, where.width)


def routed(routing, votes, tensors, impl, **options):
    """The outcome of a routing by an implementation."""
    if routing == "dynamic":
        return ops.dynamic_routing(votes, impl=impl, **options)
    options = {"inverse_temperature": 0.3} | options
    return ops.em_routing(votes, None, tensors["beta_u"], tensors["beta_a"], impl=impl, **options)


def gradients(outcomes, tensors):
    """Of a loss that weighs every outcome at random, by name."""
    weighed = [
        (x.double() * torch.randn(x.shape, generator=seeded(7), dtype=torch.float64)).sum()
        for x in outcomes
    ]
    leaves = {name: x for name, x in tensors.items() if x is not None and x.requires_grad}
    found = torch.autograd.grad(sum(weighed), list(leaves.values()), allow_unused=True)
    return {
        n: torch.zeros_like(x) if g is None else g
        for (n, x), g in zip(leaves.items(), found, strict=True)
    }


def outcome(layer, routing, impl, tensors=None, through=(0, 1, 2), **options):
    """Poses, activations, couplings, and the gradients of all that went in through some of those, by name."""
    tensors = tensors or layer.tensors()
    found = routed(routing, layer.votes(tensors), tensors, impl, **options)
    return found._asdict() | {
        f"gradient of {name}": grad
        for name, grad in gradients([found[k] for k in through], tensors).items()
    }


def compare(layer, routing="dynamic", tolerance=1e-9, impls=None, tensors=None, **options):
    """Hold fast paths that can take these votes against the reference; returns which could."""
    truth, able = outcome(layer, routing, "reference", tensors, **options), []
    for impl in impls or FAST[routing]:
        try:
            found = outcome(layer, routing, impl, tensors, **options)
        except ValueError as error:
            assert f"impl: {impl!r} cannot run {routing}_routing here" in str(error)
            continue
        able.append(impl)
        for name, right in truth.items():
            assert found[name].dtype == right.dtype
            # Gradients that cancel to nearly nothing are held to 1e-15 in all.
            assert_close(f"{impl}: {name}", found[name], right, tolerance, floor=1e-6)
    return able


@st.composite
def fields(draw, conventions=("all", "type", "space", "patch")):
    """A field of any kind, on a small map."""
    kind = draw(st.sampled_from(["everything", "map", "windows", "transposed"]))
    if kind == "everything":
        return DenseField()
    height, width = draw(st.integers(2, 6)), draw(st.integers(2, 6))
    if kind == "map":
        return DenseField(height, width)
    convention, stride = draw(st.sampled_from(conventions)), draw(st.integers(1, 3))
    kernel = draw(st.integers(1, min(3, height, width)))
    padding = draw(st.integers(0, kernel - 1))
    if kind == "transposed":
        side = (1 + draw(st.integers(0, 2)), 1 + draw(st.integers(0, 2)))
        padding = 0 if min(side) == 1 else min(padding, (kernel - 1) // 2)
        return ConvTransposeField(*side, kernel, stride, padding, convention)
    return ConvField(height, width, kernel, stride, padding, convention)

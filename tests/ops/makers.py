"""Layers of random lazy votes, and fast paths held against the reference in value and gradient."""

from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st

from checks import assert_equal
from torchcaps import ops
from torchcaps.functional import ConvField, ConvTransposeField, DenseField, ProductVotes
from torchcaps.kernels.support import HAS_NUMBA
from torchcaps.testing.compare import assert_close
from torchcaps.testing.random import seeded
from torchcaps.types import Capsules

FAST = {"dynamic": ["blocked"], "em": ["blocked", "numba"] if HAS_NUMBA else ["blocked"]}
OUTPUTS = ("pose", "activation", "coupling")
# Loops are compiled for each size of matrices and each type of number, which takes ten seconds.
# Tests of them share two: these in float64, and those of the paper in float32.
MATRICES = (2, 2, 2)
PAPER_MATRICES = (4, 4, 4)


@dataclass
class Layer:
    """Votes of poses `[rows, inner]` and weights `[inner, outer]`; a linear layer has one row."""

    field: Any = field(default_factory=DenseField)
    batch: int = 3
    types: int = 6
    parents: int = 4
    matrices: tuple = (1, 3, 5)
    shift: tuple | None = None  # whether each child, and each parent, has a shift to itself
    bias: bool = False
    dtype: torch.dtype = torch.float64
    seed: int = 0
    scale: float = 1.0

    def tensors(self):
        """Leaves by name; None for those that the layer lacks."""
        generator = seeded(self.seed)
        rows, inner, outer = self.matrices
        children = self.field.count(self.types)
        dim = rows * outer
        space = (self.batch, *map_size(self.field), self.types)

        def normal(*size):
            return torch.randn(size, generator=generator, dtype=torch.float64).to(self.dtype)

        operands = {
            "pose": self.scale * normal(*space, rows * inner),
            "activation": torch.rand(space, generator=generator),
            "weight": normal(children, self.parents, inner, outer) / inner**0.5,
            "beta_u": normal(self.parents),
            "beta_a": normal(self.parents),
            "shift": None,
            "bias": None,
        }
        if self.shift is not None:
            for_each_child, for_each_parent = self.shift
            size = (children if for_each_child else 1, self.parents if for_each_parent else 1, dim)
            operands["shift"] = normal(*size)
        if self.bias:
            operands["bias"] = normal(self.parents, dim)
        return as_leaves(operands, self.dtype)

    def votes(self, tensors):
        children = Capsules(tensors["pose"], tensors["activation"])
        return ProductVotes(
            children, self.field, tensors["weight"], tensors["shift"], tensors["bias"]
        )


def map_size(field):
    """Height and width of the map that a field looks at; empty without a map."""
    return field.space if isinstance(field, DenseField) else (field.height, field.width)


def as_leaves(tensors, dtype=None):
    """Leaves of the same numbers, of another type of number if one is named; None stays None."""
    leaves = dict.fromkeys(tensors)
    for name, tensor in tensors.items():
        if tensor is not None:
            leaves[name] = tensor.detach().to(dtype or tensor.dtype).requires_grad_()
    return leaves


def route(routing, votes, tensors, impl, **options):
    """Votes routed by an implementation."""
    if routing == "dynamic":
        return ops.dynamic_routing(votes, impl=impl, **options)
    options = {"inverse_temperature": 0.3} | options
    return ops.em_routing(votes, None, tensors["beta_u"], tensors["beta_a"], impl=impl, **options)


def compute_gradients(outputs, tensors):
    """Gradients, by name, of a loss that weighs every output at random; zeros where it has none."""
    generator = seeded(7)
    loss = 0
    for output in outputs:
        weights = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        loss = loss + (output.double() * weights).sum()
    leaves = {}
    for name, tensor in tensors.items():
        if tensor is not None and tensor.requires_grad:
            leaves[name] = tensor
    gradients = torch.autograd.grad(
        loss, list(leaves.values()), allow_unused=True, materialize_grads=True
    )
    return dict(zip(leaves, gradients, strict=True))


def add_gradients(outputs, tensors, loss_of=OUTPUTS):
    """Outputs by name, and the gradients of a loss of those in `loss_of`."""
    gradients = compute_gradients([outputs[name] for name in loss_of], tensors)
    return outputs | {f"gradient of {name}": gradient for name, gradient in gradients.items()}


def run_layer(layer, routing, impl, tensors=None, loss_of=OUTPUTS, **options):
    """Outputs by name, and the gradients of a loss of the outputs in `loss_of`."""
    tensors = tensors or layer.tensors()
    outputs = route(routing, layer.votes(tensors), tensors, impl, **options)._asdict()
    return add_gradients(outputs, tensors, loss_of)


def check_threads(run):
    """Outputs by name have the same bits by one thread and by three."""
    by_one_thread = run()
    torch.set_num_threads(3)
    assert_equal(run(), by_one_thread)


def compare(layer, routing="dynamic", tolerance=1e-9, impls=None, tensors=None, **options):
    """Hold fast paths that can take these votes against the reference; their names."""
    expected = run_layer(layer, routing, "reference", tensors, **options)
    able = []
    for impl in impls or FAST[routing]:
        try:
            outputs = run_layer(layer, routing, impl, tensors, **options)
        except ValueError as error:
            assert f"impl: {impl!r} cannot run {routing}_routing here" in str(error)
            continue
        able.append(impl)
        for name, tensor in expected.items():
            assert outputs[name].dtype == tensor.dtype, f"{impl}: {name}"
            # Gradients that cancel to nearly nothing are held to 1e-15 in all.
            assert_close(f"{impl}: {name}", outputs[name], tensor, tolerance, floor=1e-6)
    return able


@st.composite
def fields(draw, conventions=("all", "type", "space", "patch")):
    """A field of any kind, on a small map."""
    kind = draw(st.sampled_from(["everything", "map", "windows", "transposed"]))
    if kind == "everything":
        return DenseField()
    height = draw(st.integers(2, 6))
    width = draw(st.integers(2, 6))
    if kind == "map":
        return DenseField(height, width)

    convention = draw(st.sampled_from(conventions))
    stride = draw(st.integers(1, 3))
    kernel = draw(st.integers(1, min(3, height, width)))
    padding = draw(st.integers(0, kernel - 1))
    if kind == "windows":
        return ConvField(height, width, kernel, stride, padding, convention)
    height = draw(st.integers(1, 3))
    width = draw(st.integers(1, 3))
    padding = 0 if min(height, width) == 1 else min(padding, (kernel - 1) // 2)
    return ConvTransposeField(height, width, kernel, stride, padding, convention)

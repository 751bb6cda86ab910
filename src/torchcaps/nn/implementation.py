"""Which implementation the layers of a model take."""

from typing import Any

from torch import nn

from torchcaps import ops
from torchcaps.errors import check_known


def set_impl(model: nn.Module, impl: ops.Impl) -> None:
    """Have every layer of a model take this implementation of its operators, where it has one of that name.

    Layers whose operators know no such name stay as they are: "numba", say, routes and does not convolve.

    Args:
        model: any module; layers with an attribute `impl` and the names of their `operators` are set.
        impl: "auto", "reference", "cpu", "numba" or "triton"; see `torchcaps.ops`. Whether it can run is asked at the
            next call, which raises the reason if it cannot.

    Raises:
        ValueError: for an unknown name, or one that no layer of this model knows.
    """
    check_known("impl", impl, ops.IMPLS)
    modules: list[Any] = list(model.modules())
    layers = [m for m in modules if any(impl in ops.implementations(op) for op in getattr(m, "operators", ()))]
    if not layers:
        raise ValueError(f"impl: no layer of this {type(model).__name__} has an implementation {impl!r}")
    for layer in layers:
        layer.impl = impl

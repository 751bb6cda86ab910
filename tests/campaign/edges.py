"""Corners of the numerics that once failed, by name."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchcaps import create_model, functional, nn as caps, ops
from torchcaps.types import Capsules

EDGES: dict[str, Callable[[], None]] = {}


def edge(check: Callable[[], None]) -> Callable[[], None]:
    """Register a check under its name, with blanks."""
    EDGES[check.__name__.replace("_", " ")] = check
    return check


@edge
def meta_in_autocast() -> None:
    for name in ("capsnet", "matrix_caps", "cnn_baseline"):
        with torch.device("meta"):
            model = create_model(name, num_classes=3, in_chans=1, img_size=20)
            images = torch.zeros(2, 1, 20, 20)
        with torch.autocast("cpu", torch.bfloat16):
            assert model(images).shape == (2, 3)


def batch_of_none(impl: str) -> None:
    """Layers of an implementation take a batch without images."""
    conv = caps.ConvCaps(2, 3, 2, impl=impl)
    assert conv(Capsules(torch.zeros(0, 3, 3, 2, 16), torch.zeros(0, 3, 3, 2))).pose.shape == (
        0,
        2,
        2,
        3,
        16,
    )


for _impl in ("auto", "reference", "blocked"):
    EDGES[f"no images, {_impl}"] = lambda impl=_impl: batch_of_none(impl)


def transformed(kind: str, op: str) -> None:
    """`torch.func` of a fast path: as the reference has it, or a sentence that says what to do."""
    draw = torch.Generator().manual_seed(0)
    pose, weight = torch.randn(2, 5, 3, generator=draw), torch.randn(5, 4, 6, 3, generator=draw)
    layers = {
        impl: caps.CapsuleLinear(5, 3, 4, 6, "em", impl=impl)
        for impl in ("reference", "auto", "blocked")
    }
    for layer in layers.values():
        layer.load_state_dict(
            {"votes.weight": weight, **{f"router.beta_{k}": torch.zeros(4) for k in "ua"}}
        )

    def value(x: torch.Tensor, impl: str = "auto") -> torch.Tensor:
        if op == "routed dynamic":
            children = Capsules(x, x.square().sum(dim=-1))
            votes = functional.ProductVotes(
                children, functional.DenseField(), weight.transpose(2, 3)
            )
            return ops.dynamic_routing(votes, impl=impl).pose.square().sum()
        if op == "given votes":
            return (
                ops.dynamic_routing(torch.einsum("bik,ijdk->bijd", x, weight), impl=impl)
                .pose.square()
                .sum()
            )
        return layers[impl](x).pose.square().sum()

    def run(impl: str) -> torch.Tensor:
        if kind == "grad":
            return torch.func.grad(lambda x: value(x, impl))(pose)
        return torch.func.vmap(lambda x: value(x.unsqueeze(0), impl))(pose)

    right = run("reference")
    for impl in ("auto", "blocked"):
        try:
            found = run(impl)
        except (ValueError, NotImplementedError, RuntimeError) as error:
            assert len(str(error).splitlines()) == 1 and "reference" in str(error), (
                f"{kind} of {op}: {error}"
            )
        else:
            torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


for _kind in ("grad", "vmap"):
    for _op in ("routed dynamic", "given votes", "em"):
        EDGES[f"{_kind} of {_op}"] = lambda kind=_kind, op=_op: transformed(kind, op)

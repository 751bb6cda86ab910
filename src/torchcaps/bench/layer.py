"""Votes and routing alone, forward and backward, without the network around them.

`extra MiB` is the high-water mark of a forward and backward pass over what the process held before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import nn

from torchcaps.bench import measure
from torchcaps.bench.baselines import VARIANTS, check_known, unusable
from torchcaps.bench.measure import Clock, Row, Tell, alternate, silent, spread
from torchcaps.bench.roofline import Rates, least_seconds, least_work
from torchcaps.errors import check_range
from torchcaps.nn import CapsuleLinear, drawn_from
from torchcaps.types import Capsules

Passes = tuple[Callable[[], None], Callable[[], None]]


@dataclass(frozen=True)
class Sizes:
    """Of a routed layer and its input; by default the class capsules of the MNIST network.

    Raises:
        ValueError: for one below 1.
    """

    batch: int = 128
    children: int = 1152
    parents: int = 10
    dim: int = 16
    in_dim: int = 8
    iterations: int = 3

    def __post_init__(self) -> None:
        for field in fields(self):
            check_range(field.name, getattr(self, field.name), low=1)

    def layer(self) -> CapsuleLinear:
        """The reference layer of these sizes."""
        with drawn_from(torch.Generator().manual_seed(0)):
            return CapsuleLinear(
                self.children, self.in_dim, self.parents, self.dim, iterations=self.iterations, impl="reference"
            )


def layer_variants(sizes: Sizes, asked: Sequence[str] = (), tell: Tell = silent) -> list[str]:
    """The variants asked for, or without any all that can run here; which ones cannot, and why, is told."""
    check_known("variant", asked)
    if asked:
        return list(dict.fromkeys(asked))
    reasons = unusable(sizes.layer())
    for name, reason in reasons.items():
        tell(f"left out: {name} ({reason})")
    return [name for name in VARIANTS if name not in reasons]


def passes_of(variant: str, sizes: Sizes) -> Passes:
    """Functions that run a variant of the layer forward, and forward and backward."""
    return passes_of_layer(VARIANTS[variant].build(sizes.layer()), sizes)


def passes_of_layer(layer: nn.Module, sizes: Sizes) -> Passes:
    """Functions that run a layer of these sizes forward, and forward and backward."""
    generator = torch.Generator().manual_seed(1)
    pose = (torch.randn(sizes.batch, sizes.children, sizes.in_dim, generator=generator) * 0.1).requires_grad_()
    children = Capsules(pose, pose.detach().norm(dim=-1))
    upstream = torch.randn(sizes.batch, sizes.parents, sizes.dim, generator=generator)

    def forward() -> None:
        with torch.no_grad():
            layer(children)

    def both() -> None:
        layer.zero_grad(set_to_none=True)
        pose.grad = None
        parents = layer(children)
        ((parents.pose * upstream).sum() + parents.activation.sum()).backward()

    return forward, both


def compare_layers(
    sizes: Sizes, variants: Sequence[str], repeats: int, memory: bool, rates: Rates, clock: Clock, tell: Tell = silent
) -> list[Row]:
    """A row for each variant: times, ratio to the reference, extra memory, share of the roofline."""
    passes = {name: passes_of(name, sizes) for name in variants}
    forward = alternate({name: p[0] for name, p in passes.items()}, repeats, clock=clock, tell=tell)
    both = alternate({name: p[1] for name, p in passes.items()}, repeats, clock=clock, tell=tell)
    del passes
    bound = 1e3 * least_seconds(least_work(sizes.batch, sizes.layer()), rates)
    reference = spread(both["reference"])["median"] if "reference" in both else None
    rows = []
    for name in variants:
        total = spread(both[name])
        row: Row = {"variant": name, "forward ms": 1e3 * spread(forward[name])["median"]}
        row["forward+backward ms"], row["q1"], row["q3"] = (1e3 * total[key] for key in ("median", "q1", "q3"))
        row["x reference"] = None if reference is None else reference / total["median"]
        row["roofline ms"] = bound if VARIANTS[name].exact else None
        row["of roofline"] = bound / row["forward+backward ms"] if VARIANTS[name].exact else None
        if memory and measure.can_measure_memory():
            tell(f"{name}: memory")
            found = measure.in_fresh_process("layer", variant=name, sizes=asdict(sizes))
            row["extra MiB"] = found["peak_mib"] - found["before_mib"]
        rows.append(row)
    return rows


def peak(variant: str, sizes: dict[str, Any]) -> dict[str, float]:
    """Resident memory in MiB before and during a forward and backward pass, after a first one to warm up."""
    both = passes_of(variant, Sizes(**sizes))[1]
    both()
    return measure.peak_of(both)

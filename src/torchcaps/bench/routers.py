"""Every registered routing, one's own among them, in the same layer with the same weights: what each costs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchcaps.bench.layer import Sizes, passes_of_layer
from torchcaps.bench.measure import Clock, Row, Tell, alternate, silent, spread
from torchcaps.errors import UnknownNameError
from torchcaps.nn import CapsuleLinear, create_router, drawn_from, list_routers


def routers_known(asked: Sequence[str] = ()) -> list[str]:
    """The routers asked for, or without any all that are registered.

    Raises:
        UnknownNameError: for one that is not.
    """
    known = list_routers()
    for name in asked:
        if name not in known:
            raise UnknownNameError("routing", name, known)
    return list(dict.fromkeys(asked)) or known


def compare_routers(
    sizes: Sizes,
    names: Sequence[str],
    repeats: int,
    clock: Clock,
    *,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    tell: Tell = silent,
) -> list[Row]:
    """A row for each routing: milliseconds forward, and forward and backward, and those over the time of "uniform".

    Each takes the fastest implementation that it has here; one that is written as a function of votes has them stored.

    Args:
        sizes: of the layer; `iterations` goes to those that take such an option.
        names: of `list_routers()`; that of the ablation, "uniform", is timed in any case.
        repeats: runs of each, taking turns; the median counts.
        clock: see `measure.use_clock`.
        options: name -> options of that router.
        tell: is told what is being measured.

    Raises:
        UnknownNameError: for a routing that is not registered. TypeError: for an option that it does not take.
    """
    given = options or {}
    timed = list(dict.fromkeys([*routers_known(names), "uniform"]))
    passes = {name: passes_of_layer(_layer(name, sizes, given.get(name, {})), sizes) for name in timed}
    forward = alternate({name: both[0] for name, both in passes.items()}, repeats, clock=clock, tell=tell)
    whole = alternate({name: both[1] for name, both in passes.items()}, repeats, clock=clock, tell=tell)
    least = spread(whole["uniform"])["median"]
    rows = []
    for name in names:
        total = spread(whole[name])
        row: Row = {"variant": name, "forward ms": 1e3 * spread(forward[name])["median"]}
        row["forward+backward ms"], row["q1"], row["q3"] = (1e3 * total[key] for key in ("median", "q1", "q3"))
        rows.append(row | {"x uniform": total["median"] / least})
    return rows


def _layer(name: str, sizes: Sizes, options: Mapping[str, Any]) -> CapsuleLinear:
    iterates = "iterations" in inspect.signature(type(create_router(name, **options))).parameters
    options = {"iterations": sizes.iterations, **options} if iterates else options
    with drawn_from(torch.Generator().manual_seed(0)):
        return CapsuleLinear(sizes.children, sizes.in_dim, sizes.parents, sizes.dim, name, **options)

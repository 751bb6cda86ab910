"""Votes and routing alone, forward and backward, without the network around it.

    python -m benchmarks.routing_layer [--quick] [--batch 128] [--children 1152] [--parents 10] [--dim 16] [--in-dim 8]
                                       [--iterations 3] [--repeats 7] [--variants ...]

`extra MiB` is the high-water mark of a forward and backward pass over what the process held before it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch

from benchmarks.baselines import VARIANTS
from benchmarks.measure import add_clock_options, alternate, in_fresh_process, peak_of, spread, table, use_clock, write
from benchmarks.verify import verify
from torchcaps.nn import CapsuleLinear
from torchcaps.types import Capsules

SIZES = {"batch": 128, "children": 1152, "parents": 10, "dim": 16, "in_dim": 8, "iterations": 3}


def make_layer(sizes: dict[str, int]) -> CapsuleLinear:
    """The reference layer of these sizes."""
    return CapsuleLinear(
        sizes["children"],
        sizes["in_dim"],
        sizes["parents"],
        sizes["dim"],
        iterations=sizes["iterations"],
        impl="reference",
    )


def passes_of(variant: str, sizes: dict[str, int]) -> tuple[Callable[[], None], Callable[[], None]]:
    """Functions that run the layer forward, and forward and backward."""
    torch.manual_seed(0)
    layer = VARIANTS[variant].build(make_layer(sizes))
    pose = (torch.randn(sizes["batch"], sizes["children"], sizes["in_dim"]) * 0.1).requires_grad_()
    children = Capsules(pose, pose.detach().norm(dim=-1))
    upstream = torch.randn(sizes["batch"], sizes["parents"], sizes["dim"])

    def forward() -> None:
        with torch.no_grad():
            layer(children)

    def both() -> None:
        layer.zero_grad(set_to_none=True)
        pose.grad = None
        parents = layer(children)
        ((parents.pose * upstream).sum() + parents.activation.sum()).backward()

    return forward, both


def compare(
    variants: list[str], sizes: dict[str, int], repeats: int, memory: bool, clock: Callable[[], float]
) -> list[dict[str, object]]:
    """A row for each variant: forward, forward and backward, ratio to the reference, extra memory."""
    passes = {name: passes_of(name, sizes) for name in variants}
    forward = alternate({name: pair[0] for name, pair in passes.items()}, repeats, clock=clock)
    both = alternate({name: pair[1] for name, pair in passes.items()}, repeats, clock=clock)
    rows = []
    for name in variants:
        total = spread(both[name])
        row: dict[str, object] = {"variant": name, "forward ms": 1e3 * spread(forward[name])["median"]}
        row["forward+backward ms"], row["q1"], row["q3"] = (1e3 * total[key] for key in ("median", "q1", "q3"))
        if "reference" in both:
            row["x reference"] = spread(both["reference"])["median"] / total["median"]
        if memory:
            row["extra MiB"] = extra_memory(name, sizes)
        rows.append(row)
    return rows


def extra_memory(variant: str, sizes: dict[str, int]) -> float:
    """High-water mark of one forward and backward pass, in a fresh process, over what stood before it, in MiB."""
    flags = [part for key, value in sizes.items() for part in (f"--{key.replace('_', '-')}", str(value))]
    found = in_fresh_process("benchmarks.routing_layer", "--memory-of", variant, *flags)
    return found["peak_mib"] - found["before_mib"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="no torch.compile, no textbook code, no memory, three repeats"
    )
    for name, value in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--variants", nargs="+", default=None, choices=list(VARIANTS))
    parser.add_argument("--name", default="routing_layer", help="name of the result file")
    parser.add_argument("--memory-of", choices=list(VARIANTS), help=argparse.SUPPRESS)
    add_clock_options(parser)
    chosen = parser.parse_args()
    clock = use_clock(chosen)
    sizes = {name: getattr(chosen, name) for name in SIZES}
    if chosen.memory_of:
        both = passes_of(chosen.memory_of, sizes)[1]
        both()
        print(json.dumps(peak_of(both)))
        return
    left_out = ("compiled", "textbook") if chosen.quick else ()
    variants = chosen.variants or [name for name in VARIANTS if name not in left_out]
    repeats = 3 if chosen.quick else chosen.repeats
    errors = verify(variants, make_layer(sizes))
    rows = compare(variants, sizes, repeats, not chosen.quick, clock)
    print(table(rows))
    print(f"written to {write(chosen.name, {'sizes': sizes, 'repeats': repeats, 'errors': errors, 'rows': rows})}")


if __name__ == "__main__":
    main()

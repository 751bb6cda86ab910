"""One training step of the MNIST CapsNet, the class-capsule layer being swapped: how much does routing cost?

    python -m benchmarks.training_step [--quick] [--batch 128] [--repeats 5] [--precisions fp32 bf16] [--variants ...]

Step: the library's model and objective (margin loss and reconstruction), fused Adam, images in channels-last, as
`torchcaps train` does it. `tax` is the step's time over that of the network with a plain linear layer.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch

from benchmarks.baselines import VARIANTS
from benchmarks.measure import add_clock_options, alternate, in_fresh_process, peak_of, spread, table, use_clock, write
from benchmarks.verify import verify
from torchcaps.models import create_model
from torchcaps.training.objective import MarginObjective

PRECISIONS = ("fp32", "bf16")


def step_of(variant: str, batch: int, precision: str) -> Callable[[], None]:
    """A function that runs one training step of the MNIST CapsNet with this class-capsule layer."""
    torch.manual_seed(0)
    model = create_model("capsnet")
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.to(memory_format=torch.channels_last)
    model.class_capsules = VARIANTS[variant].build(model.class_capsules)
    objective = MarginObjective(model)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    images = torch.rand(batch, 1, 28, 28).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(10, (batch,))

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = objective(images, labels).total
        loss.backward()
        optimiser.step()

    return step


def compare(
    variants: list[str], batch: int, precision: str, repeats: int, memory: bool, clock: Callable[[], float]
) -> list[dict[str, object]]:
    """A row for each variant: time, images per second, tax, ratio to the textbook code, peak memory."""
    work = {name: step_of(name, batch, precision) for name in variants}
    seconds = {name: spread(found) for name, found in alternate(work, repeats, clock=clock).items()}
    time_of = {name: found["median"] for name, found in seconds.items()}
    rows = []
    for name in variants:
        row: dict[str, object] = {"variant": name, "precision": precision, "ms": 1e3 * time_of[name]}
        row["q1"], row["q3"] = 1e3 * seconds[name]["q1"], 1e3 * seconds[name]["q3"]
        row["img/s"] = batch / time_of[name]
        row["tax"] = time_of[name] / time_of["limit"] if "limit" in time_of else None
        row["x textbook"] = time_of["textbook"] / time_of[name] if "textbook" in time_of else None
        if memory:
            peak = in_fresh_process(
                "benchmarks.training_step", "--memory-of", name, "--batch", str(batch), "--precisions", precision
            )
            row["peak MiB"] = peak["peak_mib"]
        rows.append(row)
    limit = next((row.get("peak MiB") for row in rows if row["variant"] == "limit"), None)
    for row in rows:
        row["above limit MiB"] = row["peak MiB"] - limit if memory and limit is not None else None  # type: ignore[operator]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="no torch.compile, no memory, three repeats")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--variants", nargs="+", default=None, choices=list(VARIANTS))
    parser.add_argument("--name", default="training_step", help="name of the result file")
    parser.add_argument("--memory-of", choices=list(VARIANTS), help=argparse.SUPPRESS)
    add_clock_options(parser)
    chosen = parser.parse_args()
    clock = use_clock(chosen)
    if chosen.memory_of:
        step = step_of(chosen.memory_of, chosen.batch, chosen.precisions[0])
        step()
        print(json.dumps(peak_of(step)))
        return
    variants = chosen.variants or [name for name in VARIANTS if not (chosen.quick and name == "compiled")]
    repeats = 3 if chosen.quick else chosen.repeats
    errors = verify(variants, create_model("capsnet", decoder=False).class_capsules)
    rows = [
        row for p in chosen.precisions for row in compare(variants, chosen.batch, p, repeats, not chosen.quick, clock)
    ]
    print(table(rows))
    path = write(chosen.name, {"batch": chosen.batch, "repeats": repeats, "errors": errors, "rows": rows})
    print(f"written to {path}")


if __name__ == "__main__":
    main()

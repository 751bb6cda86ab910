"""torchcaps compare."""

from pathlib import Path
from typing import Annotated

import tyro

from torchcaps.cli.console import UsageError, counting, show
from torchcaps.cli.flags import Device, Json, Root


def compare(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    /,
    others: Annotated[tuple[Path, ...], tyro.conf.arg(name="with")],
    paired: bool = False,
    margin: float = 1.0,
    root: Root = None,
    device: Device = "auto",
    json: Json = False,
) -> int:
    """Say which of two methods is better, or that both are equally good, or that the runs do not decide.

    Several runs of each, with different seeds, are compared over seeds and images; one of each, over images alone.

    Example: torchcaps compare runs/routed-0 runs/routed-1 --with runs/uniform-0 runs/uniform-1

    Args:
        runs: Run folders of the method in question.
        others: Run folders of the baseline, tested on the same images.
        paired: Take runs of the same seed as pairs, because split and order come from it.
        margin: Smallest difference that matters, in points of accuracy; methods closer than that are equally good.
    """
    from torchcaps.report import compare_folders

    if not runs or not others:
        raise UsageError(f"{'--with' if runs else 'runs'}: expected one run folder or more, got none")
    few, many = sorted([len(runs), len(others)])
    if few == 1 < many:
        raise UsageError(f"--with: expected one run of each method or several of each, got {few} and {many}")
    if paired and many == 1:
        raise UsageError("--paired: expected several runs of each method, got one")
    if len({run.resolve() for run in (*runs, *others)}) < len(runs) + len(others):
        raise UsageError("runs: expected different run folders, got one of them twice")
    if not 0 < margin < 100:
        raise UsageError(f"--margin: expected points between 0 and 100, got {margin}")
    with counting("evaluating") as progress:
        found = compare_folders(
            runs, others, paired=paired, margin=margin / 100, root=root, device=device, progress=progress
        )
    show(json, found.to_dict(), found.table())
    if not json:
        print(f"\n{found.verdict}")
    return 0

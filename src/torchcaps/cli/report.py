"""torchcaps report."""

from pathlib import Path
from typing import Annotated, Any

import tyro

from torchcaps.cli.console import UsageError, counting, usage
from torchcaps.cli.flags import Device, Root


def report(
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional],
    /,
    output: Path | None = None,
    root: Root = None,
    device: Device = "auto",
    images: int = 10_000,
    diagnose: int = 64,
) -> int:
    """Write one HTML file that shows what a run is and does; of several runs, a comparison. It works offline.

    Example: torchcaps report runs/capsnet-digits

    Args:
        runs: Run folders: one for a report, several for a comparison with the first.
        output: The file; by default report.html, or comparison.html, in the first run folder.
        images: Of more test images, so many evenly spread ones are looked at for mistakes and pictures.
        diagnose: Of these, so many random ones are looked at for the measures of routing; 0 leaves them out.
    """
    from torchcaps.errors import check_range
    from torchcaps.report import write_comparison, write_report

    if not runs:
        raise UsageError("runs: expected one run folder or more, got none")
    if len({run.resolve() for run in runs}) < len(runs):
        raise UsageError("runs: expected different run folders, got one of them twice")
    with usage():
        check_range("--images", images, low=1)
        check_range("--diagnose", diagnose, low=0)
        if diagnose == 1:
            raise ValueError("--diagnose: expected 0 or at least 2, got 1")
    with counting("evaluating") as progress:
        how: dict[str, Any] = {"root": root, "device": device, "images": images, "progress": progress}
        if len(runs) == 1:
            path = write_report(runs[0], output=output, diagnose=diagnose, **how)
        else:
            path = write_comparison(runs, output=output, **how)
    print(path)
    return 0

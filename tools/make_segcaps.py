"""Make docs/images/segcaps.png: test images with their true masks and with those that a trained model finds.

    python tools/make_segcaps.py RUN

RUN is a run folder of `torchcaps train segcaps_small` on images with masks.
"""

from __future__ import annotations

import sys
from pathlib import Path

from torchcaps.reporting import open_task, save_figure
from torchcaps.tasks import evaluate_task

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "segcaps.png"


def main(run: str, root: str | None = None) -> None:
    """Draw what the run's report shows."""
    task, images = open_task(run, root=root, device="cpu")
    [report_item] = task.report_items(evaluate_task(task, images), images)
    assert report_item.figure is not None
    print(save_figure(report_item.figure, PICTURE))


if __name__ == "__main__":
    main(*sys.argv[1:])

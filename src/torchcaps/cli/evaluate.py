"""torchcaps evaluate."""

from pathlib import Path
from typing import Literal

import torchcaps as tc
from torchcaps.cli.console import counting, note, note_without_plots, show
from torchcaps.cli.flags import Data, Device, Json, Root, Run


def evaluate(
    run: Run,
    /,
    data: Data = None,
    root: Root = None,
    split: Literal["test", "train"] = "test",
    skip_damaged: bool | None = None,
    label_column: str | None = None,
    label_separator: str | None = None,
    device: Device = "auto",
    output: Path | None = None,
    json: Json = False,
) -> int:
    """Measure a trained model on images that were not used in training, and write plots.

    For a classifier: accuracy overall and per class, loss, calibration.

    Example: torchcaps evaluate runs/capsnet-digits --json

    Args:
        split: Images of the test split or of the training split. Of a folder or file without
            splits that is not the one of the training, all images are measured.
        skip_damaged: Leave out image files that cannot be read.
        label_column: Column of a .csv with the labels, as in the training.
        label_separator: Text between the labels of an image in that column, as in the training.
        output: Folder for evaluation.json and plots; by default the run folder, or, for other data
            or another split, a folder of that name in it.
    """
    folder = output or tc.reporting.evaluation_folder(run, data, split)
    flags = {
        "skip_damaged": skip_damaged,
        "label_column": label_column,
        "label_separator": label_separator,
    }
    options = {name: setting for name, setting in flags.items() if setting is not None}
    with counting("evaluating") as progress:
        evaluation = tc.evaluate(
            run,
            data,
            root=root,
            split=split,
            device=device,
            output=folder,
            progress=progress,
            emit=note,
            **options,
        )
    show(json, evaluation.to_dict(), evaluation.table().lines, evaluation.summary)
    note_without_plots()
    return 0

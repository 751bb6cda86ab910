"""Test accuracy of trained runs, and of all of them together: by the mean of their activations.

    python -m benchmarks.ensemble RUN RUN ... [--root data/]

Runs are folders of `torchcaps train` with the same data. Each network reads the test images once.
"""

from __future__ import annotations

import argparse
import json
import sys
from statistics import mean, stdev

import torch
from torch import Tensor, nn

from torchcaps.data import Dataset
from torchcaps.errors import DataError, RunError
from torchcaps.reporting import open_task

BATCH = 500


@torch.inference_mode()
def activations(model: nn.Module, images: Dataset) -> Tensor:
    """Class activations `[n, classes]` of all images."""
    return torch.cat(
        [
            model(images.float_images(index)).float()
            for index in torch.arange(len(images)).split(BATCH)
        ]
    )


def ensemble_accuracy(outputs: list[Tensor], labels: Tensor) -> dict[str, object]:
    """Accuracy of each network's activations `[n, classes]`, their mean and standard deviation, and that of all."""
    accuracies = [float((one.argmax(dim=1) == labels).double().mean()) for one in outputs]
    spread = stdev(accuracies) if len(accuracies) > 1 else 0.0
    all_of_them = float((torch.stack(outputs).mean(dim=0).argmax(dim=1) == labels).double().mean())
    return {"each": accuracies, "mean": mean(accuracies), "std": spread, "together": all_of_them}


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", help="run folders")
    parser.add_argument("--root", help="where the data set is looked for first")
    options = parser.parse_args(arguments)
    try:
        opened = [open_task(run, root=options.root, device="cpu") for run in options.runs]
    except (RunError, DataError) as error:
        print(error, file=sys.stderr)
        return 2
    if len({(images.name, images.classes) for _, images in opened}) > 1:
        print("runs: expected runs with the same data", file=sys.stderr)
        return 2
    outputs = [
        activations(task.model.eval(), images) for task, images in opened
    ]  # of the size each of them takes
    print(json.dumps(ensemble_accuracy(outputs, opened[0][1].labels)))
    return 0


if __name__ == "__main__":
    sys.exit(main())

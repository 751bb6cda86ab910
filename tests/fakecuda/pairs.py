"""A system trained with and without a graph of its step, on a GPU of host memory or a real one.

Each training is stopped, resumed, and has a last batch of fewer images in both of its epochs. What
it leaves is to be the same bit for bit. A system may stay without a graph: "reason" says why.
"""

from pathlib import Path
from unittest import mock

import torch

from fakecuda import runs
from torchcaps.training import Interrupted, Run, Trainer, train
from torchcaps.training.files import load_tensors

STOPPED_AFTER = 5  # of 12 steps, each sixth of fewer images
UNLIKE = ("seconds", "images_per_second", "time")  # of rows


class StopAfter(runs.StopAfter):
    """Ends a training after so many steps, without a look at the losses of each."""

    is_late = True


def settings(name, precision, **further):
    """A tiny run of a system, whose last batches are small."""
    size = {"epochs": 2, "epoch_size": 22, "checkpoint_every": STOPPED_AFTER}
    config = runs.settings(name, precision)
    if config.optimizer.accumulate > 1:
        size["epoch_size"] = 46
    return config.updated(**(size | further))


def trainings(config, folder):
    """The trainers of a run that is stopped and resumed in a folder."""
    trainers = []
    run = Trainer.run

    def noted_run(trainer):
        trainers.append(trainer)
        run(trainer)

    with mock.patch.object(Trainer, "run", noted_run):
        try:
            train(config, folder, callbacks=[StopAfter(STOPPED_AFTER)])
        except Interrupted:
            train(config, folder, resume=True)
    return trainers


def outcome(folder):
    """What a run leaves: tensors and rows of metrics."""
    tensors = {}
    for file in sorted(Path(folder).rglob("*.safetensors")):
        for name, tensor in load_tensors(file)[0].items():
            tensors[f"{file.name} {name}"] = tensor
    rows = [{k: v for k, v in row.items() if k not in UNLIKE} for row in Run(folder).rows]
    return tensors, rows


def differences(folder, other):
    """Names of what two runs left in other bits."""
    (tensors, rows), (other_tensors, other_rows) = outcome(folder), outcome(other)
    names = [
        name
        for name in sorted(tensors.keys() | other_tensors.keys())
        if not torch.equal(tensors[name], other_tensors[name])
    ]
    return names if rows == other_rows else [*names, "rows"]


def compare(name, precision, folder, **further):
    """The row of a system that is trained with and without a graph."""
    folders = [Path(folder) / graph for graph in ("no", "auto")]
    for graph_folder in folders:
        config = settings(name, precision, graph=graph_folder.name, **further)
        trainers = trainings(config, graph_folder)
    return {
        "name": name,
        "precision": precision,
        "graphs": [trainer.graph.graph is not None for trainer in trainers],
        "reason": trainers[-1].graph.reason,
        "differences": differences(*folders)[:9],
    }

"""What a trained model says of image files."""

from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchcaps.data import Preprocess
from torchcaps.distributed import current
from torchcaps.errors import ArgumentError, check_range
from torchcaps.evaluation.forward import device_of, evaluating
from torchcaps.settings import TrainConfig
from torchcaps.tasks._base import BATCH, Task, create_task
from torchcaps.tasks.masks import predict_masks
from torchcaps.types import model_metadata

Rows = list[dict[str, Any]]


def predict(
    model: nn.Module,
    paths: Iterable[str | Path],
    *,
    batch_size: int = BATCH,
    output: str | Path | None = None,
) -> Rows:
    """What a trained model says of image files, and of all images in folders.

    Several processes share the work.

    Args:
        model: as `torchcaps.load` or `torchcaps.fit` returns it, or with `.preprocess`.
        paths: image files and folders, of which `batch_size` are read at a time.
        output: a folder, made where it is missing, for what the task draws of each image, such as
            masks.

    Returns:
        For each image a dictionary, ready for JSON: its "path", and what `Task.predict` gives.

    Raises:
        DataError: for a path that is absent, holds no image, or cannot be read as one.
        ValueError: for a model without preprocessing, a batch size below 1, or `output` where
            nothing is drawn.
    """
    check_range("batch_size", batch_size, low=1)
    metadata = model_metadata(model)
    preprocess = metadata.preprocess
    if not isinstance(preprocess, Preprocess):
        raise ArgumentError("model", "expected .preprocess, as torchcaps.load gives it, got none")
    task = create_task(model, TrainConfig.of(task=metadata.task))
    if output is not None:
        if not task.is_dense:
            raise ArgumentError("output", f"the task {task.name} draws nothing of single pictures")
        output = Path(output)
        output.mkdir(parents=True, exist_ok=True)
    files = preprocess.files(paths)
    ranks = current()
    shard = ranks.shard(len(files))
    names = unique_names([file.stem for file in files])[shard]
    files = files[shard]
    rows: Rows = []
    with evaluating(model):
        for start in range(0, len(files), batch_size):
            batch = slice(start, start + batch_size)
            rows += _predict_batch(task, preprocess, files[batch], names[batch], output)
    return [row for part in ranks.gather(rows) for row in part]


def _predict_batch(
    task: Task,
    preprocess: Preprocess,
    files: Sequence[Path],
    names: Sequence[str],
    output: Path | None,
) -> Rows:
    if task.is_dense:
        rows = predict_masks(task, files, names, preprocess, output)
    else:
        images = torch.stack([preprocess(file) for file in files])
        rows = task.predict(images.to(device_of(task.model)))
    return [{"path": str(file), **row} for file, row in zip(files, rows, strict=True)]


def unique_names(names: Iterable[str]) -> list[str]:
    """Names, with a number after one that was there before; some file systems do not tell capitals."""
    unique: list[str] = []
    taken = set()
    for name in names:
        candidates = (name if n == 1 else f"{name}-{n}" for n in count(1))
        candidate = next(text for text in candidates if text.lower() not in taken)
        taken.add(candidate.lower())
        unique.append(candidate)
    return unique

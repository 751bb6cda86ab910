"""What a trained model says of pictures."""

from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from torchcaps.data import Preprocess
from torchcaps.distributed import current
from torchcaps.errors import ArgumentError, check_range
from torchcaps.evaluation.base import BATCH
from torchcaps.evaluation.forward import device_of, evaluating
from torchcaps.reporting.subject import ModelOrRun, load_model
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task, create_task
from torchcaps.tasks.masks import predict_masks
from torchcaps.types import model_metadata

Input = str | Path | Image.Image | np.ndarray | Tensor
Rows = list[dict[str, Any]]


def predict(
    model_or_run: ModelOrRun,
    inputs: Input | Iterable[Input],
    *,
    batch_size: int = BATCH,
    device: str = "auto",
    output: str | Path | None = None,
) -> Rows:
    """What a trained model says of pictures. Several processes share the work.

    Args:
        model_or_run: a run, or its folder; a file of weights; or a model with `.preprocess`, as
            `torchcaps.load` and `torchcaps.fit` return it.
        inputs: image files and folders of them; or pictures of Pillow, arrays or tensors: one,
            several, or a batch `[n, channels, height, width]`.
        batch_size: so many are read at a time.
        device: "auto" leaves a model where it is.
        output: a folder, made where it is missing, for what the task draws of each image file, such
            as masks.

    Returns:
        For each picture a dictionary, ready for JSON: what `Task.predict` gives, of a classifier
        "label", "activation" and "activations" by class; and the "path" of a file.

    Raises:
        RunError: for no run.
        DataError: for a path that is absent, holds no image, or what cannot be read as one.
        ArgumentError: for a model without preprocessing, a batch size below 1, `output` where
            nothing is drawn, or arrays for a task of pixels.
    """
    check_range("batch_size", batch_size, low=1)
    model = load_model(model_or_run, device)
    metadata = model_metadata(model)
    preprocess = metadata.preprocess
    if not isinstance(preprocess, Preprocess):
        raise ArgumentError("model", "expected .preprocess, as torchcaps.load gives it, got none")
    task = create_task(model, TrainConfig.of(task=metadata.task))
    items = _items(inputs)
    paths = [item for item in items if isinstance(item, str | Path)]
    are_files = len(paths) == len(items)
    if output is not None:
        if not (task.is_dense and are_files):
            raise ArgumentError("output", f"the task {task.name} draws nothing of single pictures")
        output = Path(output)
        output.mkdir(parents=True, exist_ok=True)
    elif task.is_dense and not are_files:
        raise ArgumentError("inputs", f"the task {task.name} takes image files")
    pictures = preprocess.files(paths) if are_files else items
    ranks = current()
    shard = ranks.shard(len(pictures))
    names = unique_names([Path(path).stem for path in pictures])[shard] if are_files else []
    pictures = pictures[shard]
    rows: Rows = []
    with evaluating(model):
        for start in range(0, len(pictures), batch_size):
            batch = slice(start, start + batch_size)
            if task.is_dense:
                rows += predict_masks(task, pictures[batch], names[batch], preprocess, output)
            else:
                rows += _predict_batch(task, preprocess, pictures[batch])
    if are_files:
        rows = [{"path": str(path), **row} for path, row in zip(pictures, rows, strict=True)]
    return [row for part in ranks.gather(rows) for row in part]


def _items(inputs: Input | Iterable[Input]) -> list[Any]:
    if isinstance(inputs, np.ndarray | Tensor) and inputs.ndim == 4:
        return list(inputs)
    return [inputs] if isinstance(inputs, Input) else list(inputs)


def _predict_batch(task: Task, preprocess: Preprocess, pictures: Sequence[Input]) -> Rows:
    images = torch.stack([preprocess(picture) for picture in pictures])
    return task.predict(images.to(device_of(task.model)))


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

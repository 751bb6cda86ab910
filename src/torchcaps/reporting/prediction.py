"""Predictions of a trained model for pictures."""

from collections.abc import Iterable
from itertools import chain, count
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
from torchcaps.tasks import create_task
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
    """Predict pictures with a trained model. Several processes share the work.

    Args:
        model_or_run: a run, or its folder; a file of weights; or a model with `.preprocess`, as
            `torchcaps.load` and `torchcaps.fit` return it.
        inputs: image files and folders of them; or pictures of Pillow, arrays or tensors: one,
            several, or a batch `[n, channels, height, width]`.
        batch_size: number of pictures that are read at a time, at least 1.
        device: "auto" leaves a model where it is.
        output: a folder, made where it is missing, for what the task draws of each image file, such
            as masks.

    Returns:
        For each picture a dictionary, ready for JSON: what `Task.predict` gives, of a classifier
        "label", "activation" and "activations" by class; and the "path" of a file.

    Raises:
        RunError: for no run.
        DataError: for a path that is absent, holds no image, or cannot be read as one.
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

    pictures = _as_list(inputs)
    are_files = all(isinstance(picture, str | Path) for picture in pictures)
    if task.is_dense and not are_files:
        raise ArgumentError("inputs", f"the task {task.name} takes image files")
    if output is not None:
        if not task.is_dense:
            raise ArgumentError("output", f"the task {task.name} draws nothing of single pictures")
        output = Path(output)
        output.mkdir(parents=True, exist_ok=True)

    names: list[str] = []
    if are_files:
        pictures = preprocess.files(pictures)
        names = unique_names(path.stem for path in pictures)
    ranks = current()
    shard = ranks.shard(len(pictures))
    pictures = pictures[shard]
    names = names[shard]
    rows: Rows = []
    with evaluating(model):
        for start in range(0, len(pictures), batch_size):
            batch = slice(start, start + batch_size)
            if task.is_dense:
                rows += predict_masks(task, pictures[batch], names[batch], preprocess, output)
            else:
                images = torch.stack([preprocess(picture) for picture in pictures[batch]])
                rows += task.predict(images.to(device_of(model)))
    if are_files:
        rows = [{"path": str(path), **row} for path, row in zip(pictures, rows, strict=True)]
    return list(chain.from_iterable(ranks.gather(rows)))


def _as_list(inputs: Any) -> list[Any]:
    """One input, several, or a batch of images `[n, channels, height, width]`, as a list."""
    is_batch = isinstance(inputs, np.ndarray | Tensor) and inputs.ndim == 4
    if isinstance(inputs, Input) and not is_batch:
        return [inputs]
    return list(inputs)


def unique_names(names: Iterable[str]) -> list[str]:
    """Names, with a number after one that was there before, in whatever case.

    Some file systems do not tell capitals from small letters.
    """
    unique: dict[str, str] = {}  # by the name in small letters
    for name in names:
        candidate = name
        numbers = count(2)
        while candidate.lower() in unique:
            candidate = f"{name}-{next(numbers)}"
        unique[candidate.lower()] = candidate
    return list(unique.values())

"""Apply a trained model to image files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from torchcaps.data import images_in
from torchcaps.errors import check_range
from torchcaps.evaluation.base import BATCH, Figures
from torchcaps.evaluation.forward import device_of


@dataclass(frozen=True)
class Prediction(Figures):
    """What a model says of one image.

    Attributes:
        path: the file.
        label: name of the class with the longest capsule.
        activation: that capsule's length, in [0, 1]; not a probability.
        activations: class name -> length, longest first.
    """

    path: str
    label: str
    activation: float
    activations: dict[str, float]


class LoadedModel(Protocol):
    """What `torchcaps.load` adds to a model: the names of its classes, and how an image file becomes its input."""

    classes: tuple[str, ...]

    def preprocess(self, file: Path) -> Tensor: ...  # noqa: D102


@torch.inference_mode()
def predict(model: nn.Module, paths: Iterable[str | Path], *, batch_size: int = BATCH) -> list[Prediction]:
    """Classify image files, and all images in folders.

    Args:
        model: as `torchcaps.load` returns it, with `.classes` and `.preprocess`.
        paths: image files and folders.
        batch_size: images at a time.

    Raises:
        DataError: for a path that is absent, holds no image, or cannot be read as one.
        ValueError: for a model without `.classes` and `.preprocess`, or a batch size below 1.
    """
    check_range("batch_size", batch_size, low=1)
    loaded = cast(LoadedModel, model)
    try:
        classes, preprocess = loaded.classes, loaded.preprocess
    except AttributeError:
        raise ValueError(
            "model: expected .classes and .preprocess, as torchcaps.load gives them, got neither or one"
        ) from None
    files, found = images_in(paths), []
    for start in range(0, len(files), batch_size):
        batch = files[start : start + batch_size]
        images = torch.stack([preprocess(file) for file in batch])
        for file, lengths in zip(batch, model(images.to(device_of(model))).float().cpu(), strict=True):
            order = lengths.argsort(descending=True).tolist()
            ranked = {classes[k]: float(lengths[k]) for k in order}
            found.append(Prediction(str(file), classes[order[0]], float(lengths[order[0]]), ranked))
    return found

"""Apply a trained model to image files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from torchcaps.data import images_in
from torchcaps.errors import check_range
from torchcaps.evaluation.forward import device_of


@dataclass(frozen=True)
class Prediction:
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

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


@torch.inference_mode()
def predict(model: nn.Module, paths: Iterable[str | Path], *, batch_size: int = 256) -> list[Prediction]:
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
    if not (hasattr(model, "classes") and hasattr(model, "preprocess")):
        raise ValueError("model: expected .classes and .preprocess, as torchcaps.load gives them, got neither or one")
    files = images_in(paths)
    classes: tuple[str, ...] = model.classes  # type: ignore[assignment]
    found = []
    for start in range(0, len(files), batch_size):
        batch = files[start : start + batch_size]
        images = torch.stack([model.preprocess(file) for file in batch])  # type: ignore[operator]
        for file, lengths in zip(batch, model(images.to(device_of(model))).float().cpu(), strict=True):
            order = lengths.argsort(descending=True).tolist()
            ranked = {classes[k]: float(lengths[k]) for k in order}
            found.append(Prediction(str(file), classes[order[0]], float(lengths[order[0]]), ranked))
    return found

"""The class of each pixel of an image, by a dense task: of files, and as pictures for a page."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from PIL import Image
from torch import Tensor

from torchcaps.data import Preprocess, decode_image
from torchcaps.data.masks import overlaid, write_mask
from torchcaps.data.pixels import to_float
from torchcaps.evaluation.forward import device_of
from torchcaps.types import model_metadata

OVERLAP = 4  # tiles of a large image overlap by one in so many of their pixels
PerClass = Float[Tensor, "batch classes height width"]  # the background left out
Masks = Int64[Tensor, "batch height width"]


def most_probable(probabilities: PerClass) -> Masks:
    """The class of each pixel: the most probable one if above one half, else 0, the background."""
    probability, index = probabilities.max(dim=1)
    return torch.where(probability > 0.5, index + 1, 0)


def predict_masks(
    task: Any,
    files: Sequence[Path],
    names: Sequence[str],
    preprocess: Preprocess,
    output: Path | None,
) -> list[dict[str, Any]]:
    """Shares of pixels by class, of image files.

    The label is the class with the most pixels, and the background where no class is found.

    Args:
        task: a dense one.
        files: of images, of any size.
        names: of the files written for them.
        preprocess: of the model.
        output: folder for `NAME_mask.png` and `NAME_overlay.png` of each image's own size; None
            writes nothing.
    """
    classes = model_metadata(task.model).classes
    rows = []
    for file, name in zip(files, names, strict=True):
        image = decode_image(file, None, preprocess.in_chans)
        mask = predict_mask(task, image, preprocess).numpy()
        shares = np.bincount(mask.flatten(), minlength=len(classes)) / mask.size
        label = 1 + int(shares[1:].argmax()) if mask.any() else 0
        row: dict[str, Any] = {
            "label": classes[label],
            "share": float(shares[label]),
            "shares": dict(zip(classes, shares.tolist(), strict=True)),
        }
        if output is not None:
            row["mask"] = str(output / f"{name}_mask.png")
            row["overlay"] = str(output / f"{name}_overlay.png")
            write_mask(Path(row["mask"]), mask, len(classes))
            overlay = overlaid(image.numpy(), mask, len(classes))
            Image.fromarray(overlay).save(row["overlay"])
        rows.append(row)
    return rows


@torch.inference_mode()
def predict_mask(task: Any, image: Tensor, preprocess: Preprocess) -> Tensor:
    """The class of each pixel of an image, `[height, width]` in bytes.

    The image is brought to the model's size as its training images were. A model that was trained
    on windows of its images looks at every image in windows.

    Args:
        task: a dense one.
        image: `[channels, height, width]` in bytes.
        preprocess: of the model.
    """

    def predict(batch: Tensor) -> Tensor:
        return task.predict_pixels(batch.to(device_of(task.model))).cpu()

    if preprocess.crop is None:
        batch = preprocess(image.movedim(0, -1).numpy()).unsqueeze(0)
        size = image.shape[1:]
        probabilities = F.interpolate(predict(batch), size, mode="bilinear", align_corners=False)
    else:
        probabilities = predict_tiles(predict, to_float(image), preprocess.crop).unsqueeze(0)
    return most_probable(probabilities)[0].to(torch.uint8)


def predict_tiles(
    predict: Callable[[Tensor], PerClass], image: Float[Tensor, "channels height width"], side: int
) -> Float[Tensor, "classes height width"]:
    """Probabilities of the pixels of an image of any size, from square tiles that overlap.

    Each pixel is a mean over the tiles that show it; a tile weighs the more the nearer the pixel is
    to its center. Memory does not grow with the number of tiles.

    Args:
        predict: probabilities of a batch of tiles.
        image: in [0, 1].
        side: of a tile, in pixels.
    """
    height, width = image.shape[1:]
    image = F.pad(image, (0, max(0, side - width), 0, max(0, side - height)))
    ramp = torch.linspace(-1, 1, side).abs().mul(-1).add(1 + 1 / side)
    weight = ramp.unsqueeze(1) * ramp
    weight_sum = torch.zeros(image.shape[1:])
    probability_sum: Tensor | None = None
    for top in _starts(image.shape[1], side):
        for start in _starts(image.shape[2], side):
            window = (slice(top, top + side), slice(start, start + side))
            probabilities = predict(image[:, *window].unsqueeze(0))[0]
            if probability_sum is None:
                probability_sum = probabilities.new_zeros(len(probabilities), *image.shape[1:])
            probability_sum[:, *window] += probabilities * weight
            weight_sum[window] += weight
    assert probability_sum is not None
    return (probability_sum / weight_sum)[:, :height, :width]


def overlays(task: Any, images: Tensor) -> tuple[Tensor, Tensor]:
    """What a dense task makes of images, for a page that shows them.

    Args:
        task: a dense one.
        images: `[n, channels, height, width]` in [0, 1].

    Returns:
        The share of each class `[n, classes]`, and the classes as colors over the images
        `[n, 3, height, width]`.
    """
    probabilities = task.predict_pixels(images)
    masks = most_probable(probabilities).cpu()
    num_classes = 1 + probabilities.shape[1]
    is_class = masks.unsqueeze(1) == torch.arange(num_classes).view(-1, 1, 1)
    shares = is_class.flatten(2).float().mean(dim=2)

    pixels = images.mul(255).round().to(torch.uint8).cpu().numpy()
    pictures = [
        overlaid(image, mask, num_classes)
        for image, mask in zip(pixels, masks.numpy(), strict=True)
    ]
    return shares, torch.from_numpy(np.stack(pictures)).movedim(-1, 1).float() / 255


def _starts(length: int, side: int) -> Iterator[int]:
    """First pixels of tiles along one axis, the last of which ends with the image."""
    yield from range(0, length - side, side - side // OVERLAP)
    yield length - side

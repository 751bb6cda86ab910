"""Masks from a trained model: the class of each pixel, of image files of any size or for a page.

A mask holds the class of each pixel, 0 for background. The model belongs to a dense task, one whose
method `predict_pixels` takes images `[batch, channels, height, width]` in [0, 1] and returns
`ClassMaps`: probabilities of each foreground class, that is each class but the background.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from PIL import Image
from torch import Tensor

from torchcaps.data import Preprocess
from torchcaps.data.masks import overlaid, write_mask
from torchcaps.data.pixels import to_float
from torchcaps.transfer import device_of
from torchcaps.types import model_metadata

OVERLAP = 4  # neighboring tiles of a large image share a quarter of their side
ClassMaps = Float[Tensor, "batch classes height width"]  # of the foreground classes
Masks = Int64[Tensor, "batch height width"]


def masks_from_probabilities(probabilities: ClassMaps) -> Masks:
    """The class of each pixel: the most probable one if above one half, else the background."""
    probability, index = probabilities.max(dim=1)
    return torch.where(probability > 0.5, index + 1, 0)


def predict_masks(
    task: Any,
    images: Iterable[Tensor],
    names: Sequence[str],
    preprocess: Preprocess,
    output: Path | None,
) -> list[dict[str, Any]]:
    """Predict the masks of images, in inference mode.

    An image is brought to the model's size as its training images were. A model that was trained on
    windows of its images (`preprocess.crop`) looks at an image in tiles of this size.

    Args:
        task: a dense one.
        images: `[channels, height, width]` each, of any size: uint8, or floats in the range of the
            model.
        names: of the files written for them.
        preprocess: how images are brought to the model's size and range.
        output: folder for `NAME_mask.png` and `NAME_overlay.png` of each image's own size; None
            writes nothing.

    Returns:
        For each image: "shares" of its pixels by the name of their class; "label", the class with
        the most pixels, which is the background only where there is no other; the "share" of this
        class; and the files written, "mask" and "overlay".
    """
    classes = model_metadata(task.model).classes

    def predict(batch: Tensor) -> Tensor:
        return task.predict_pixels(batch.to(device_of(task.model))).cpu()

    rows = []
    for image, name in zip(images, names, strict=True):
        if preprocess.crop is None:
            # Whole: probabilities of the resized image are resized back.
            probabilities = F.interpolate(
                predict(preprocess(image).unsqueeze(0)), image.shape[1:], mode="bilinear"
            )
        else:
            probabilities = predict_tiles(predict, to_float(image), preprocess.crop).unsqueeze(0)
        mask = masks_from_probabilities(probabilities)[0].byte().numpy()
        shares = np.bincount(mask.flatten(), minlength=len(classes)) / mask.size
        label = 1 + int(shares[1:].argmax()) if mask.any() else 0
        row: dict[str, Any] = {
            "label": classes[label],
            "share": float(shares[label]),
            "shares": dict(zip(classes, shares.tolist(), strict=True)),
        }
        if output:
            row["mask"] = str(output / f"{name}_mask.png")
            row["overlay"] = str(output / f"{name}_overlay.png")
            write_mask(Path(row["mask"]), mask, len(classes))
            pixels = to_float(image).mul(255).round().clamp(0, 255).byte()
            Image.fromarray(overlaid(pixels.numpy(), mask, len(classes))).save(row["overlay"])
        rows.append(row)
    return rows


def predict_tiles(
    predict: Callable[[Tensor], ClassMaps], image: Float[Tensor, "channels height width"], side: int
) -> Float[Tensor, "classes height width"]:
    """Probabilities of the pixels of an image of any size, from square tiles that overlap.

    The probability of a pixel is a weighted mean over the tiles that show it. The weight falls from
    the center of a tile to its border. Memory does not grow with the number of tiles.

    Args:
        predict: returns the probabilities of a batch of tiles, `[batch, channels, side, side]`.
        image: in [0, 1].
        side: of a tile, in pixels.
    """
    height, width = image.shape[1:]
    # An image smaller than a tile is filled up with zeros on the right and below.
    image = F.pad(image, (0, max(0, side - width), 0, max(0, side - height)))

    # Weight of each pixel of a tile, `[side, side]`, nowhere zero.
    ramp = 1 + 1 / side - torch.linspace(-1, 1, side).abs()
    weight = ramp.unsqueeze(1) * ramp

    # First pixels of the tiles along each axis, the last of which ends with the image.
    starts = (
        [*range(0, length - side, side - side // OVERLAP), length - side]
        for length in image.shape[1:]
    )
    sums: Any = 0
    for top, left in product(*starts):
        tile = image[:, top : top + side, left : left + side].unsqueeze(0)
        weighted = torch.cat([predict(tile)[0] * weight, weight.unsqueeze(0)])
        if top == left == 0:
            sums = weighted.new_zeros(len(weighted), *image.shape[1:])
        sums[:, top : top + side, left : left + side] += weighted
    return (sums[:-1] / sums[-1])[:, :height, :width]


def overlays(task: Any, images: Tensor) -> tuple[Tensor, Tensor]:
    """Predicted masks as colors over their images, for a page that shows them.

    Args:
        task: a dense one.
        images: `[n, channels, height, width]` in [0, 1].

    Returns:
        The share of pixels of each class `[n, classes]`, and the images under the colors
        `[n, 3, height, width]` in [0, 1].
    """
    probabilities = task.predict_pixels(images)
    masks = masks_from_probabilities(probabilities).cpu()
    num_classes = 1 + probabilities.shape[1]
    shares = F.one_hot(masks, num_classes).flatten(1, 2).float().mean(dim=1)

    pixels = images.mul(255).round().byte().cpu().numpy()
    pictures = [
        torch.from_numpy(overlaid(image, mask, num_classes))
        for image, mask in zip(pixels, masks.numpy(), strict=True)
    ]
    return shares, torch.stack(pictures).movedim(-1, 1).float() / 255

"""From whatever a person hands to a trained model, to the tensor that the model was trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from torchcaps.data.augment.crop import center_crop
from torchcaps.data.budget import read_errors
from torchcaps.data.images import decode_image, is_image_name, natural_key
from torchcaps.data.pixels import array_images, fit_images, size_pair, to_float
from torchcaps.errors import DataError, check_regular
from torchcaps.registry import Registry

MOST_SIDE = 8192  # pixels: a file may ask for any number
MOST_WORDS = 400  # characters of a description in an error
Picture = str | Path | Image.Image | np.ndarray | Tensor


@dataclass(frozen=True)
class Preprocess:
    """What prediction does to an image before the model: decode, set the channels, resize, scale to [0, 1], crop.

    DataError at construction, when a size is out of range, or the crop larger than the image.
    """

    img_size: tuple[
        int, int
    ]  # (height, width) to resize to, at most 8192; without a crop, what the model takes
    in_chans: int  # 1 or 3 for image files; arrays may have any number that the model takes
    crop: int | None = None  # side of the square that is cut out of the middle after resizing
    kind: ClassVar[str] = "images"  # of what the model takes, and its name in files

    def __init_subclass__(cls, kind: str) -> None:
        super().__init_subclass__()
        cls.kind = kind
        PREPROCESSES.add(kind, cls)

    def __post_init__(self) -> None:
        object.__setattr__(self, "img_size", size_pair(self.img_size))
        if max(self.img_size) > MOST_SIDE:
            raise DataError(
                f"img_size: expected at most {MOST_SIDE} pixels a side, got {self.img_size}"
            )
        if self.in_chans < 1:
            raise DataError(f"in_chans: expected at least 1, got {self.in_chans}")
        if self.crop is not None and not 1 <= self.crop <= min(self.img_size):
            raise DataError(
                f"crop: expected from 1 to {min(self.img_size)} pixels, got {self.crop}"
            )

    @property
    def is_picture(self) -> bool:
        """Whether what the model takes can be shown as a picture."""
        return self.kind == Preprocess.kind

    @property
    def model_size(self) -> tuple[int, int]:
        """(height, width) of what the model gets."""
        return self.img_size if self.crop is None else (self.crop, self.crop)

    def files(self, paths: Iterable[str | Path]) -> list[Path]:
        """The files that these paths name, and those in folders; see `images_in`."""
        return images_in(paths)

    def finish(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels h w"]:
        """Crop images `[batch, channels, *img_size]`, floats in [0, 1], where this preprocessing does."""
        return images if self.crop is None else center_crop(images, self.crop)

    def __call__(self, image: Picture) -> Float[Tensor, "channels height width"]:
        """One image as the model takes it, float32 `[channels, *model_size]`, in [0, 1].

        It is a path; a Pillow image; or an array or tensor of one image, as `read_arrays` takes them. DataError:
        unreadable, of an unclear layout, or out of range.
        """
        if isinstance(image, np.ndarray | Tensor):
            array = image.detach().cpu().numpy() if isinstance(image, Tensor) else image
            if array.ndim not in (2, 3):
                raise DataError(
                    f"image: expected an array of 2 or 3 axes, got shape {list(array.shape)}"
                )
            pixels = fit_images(array_images("image", array[None]), self.img_size, self.in_chans)[0]
        else:
            pixels = decode_image(image, self.img_size, self.in_chans)
        return self.finish(to_float(pixels.clone()).unsqueeze(0))[0]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: `{"img_size": [height, width], "in_chans": channels}`, and a crop and a kind."""
        values: dict[str, Any] = {"img_size": list(self.img_size), "in_chans": self.in_chans}
        if self.crop is not None:
            values["crop"] = self.crop
        if not self.is_picture:
            values["kind"] = self.kind
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocess:
        """The inverse of `to_dict`; DataError where a value is missing or of another kind."""
        try:
            preprocess_class = PREPROCESSES[values.get("kind", Preprocess.kind)]
            height, width = values["img_size"]
            channels = values["in_chans"]
            crop = values.get("crop")
            numbers = (height, width, channels, 1 if crop is None else crop)
            if any(type(number) is not int for number in numbers):
                raise ValueError
        except (AttributeError, KeyError, TypeError, ValueError):
            shown = repr(values)[:MOST_WORDS]
            raise DataError(
                f"preprocess: expected img_size [height, width] and in_chans, got {shown}"
            ) from None
        return preprocess_class((height, width), channels, crop)


PREPROCESSES: Registry[type[Preprocess]] = Registry("kind of input")
PREPROCESSES.add(Preprocess.kind, Preprocess)


def images_in(paths: Iterable[str | Path]) -> list[Path]:
    """The image files that these paths name, each once and in natural order ("img2" before "img10").

    Folders are searched at every depth; hidden files and folders inside them are passed over. DataError: a path does
    not exist, a file is no image by its ending, or a folder holds no image.
    """
    return files_in(paths, is_image_name, "image", ".png or .jpg")


def files_in(
    paths: Iterable[str | Path], holds: Callable[[str], bool], what: str, endings: str
) -> list[Path]:
    """`images_in` for files of any kind: those whose names `holds` takes; errors call them `what`, with `endings`."""
    found: set[Path] = set()
    for path in map(Path, paths):
        with read_errors(path):
            if not path.exists():
                raise DataError(f"{path}: no such file or folder")
            if not path.is_dir():
                check_regular(path)
                if not holds(path.name):
                    named = f"{'an' if what[0] in 'aeiou' else 'a'} {what} by its name"
                    raise DataError(f"{path}: not {named}; expected an ending such as {endings}")
                found.add(path)
                continue
            inside = (p for p in path.rglob("*") if holds(p.name) and p.is_file())
            shown = {
                p
                for p in inside
                if not any(part.startswith(".") for part in p.relative_to(path).parts)
            }
            if not shown:
                raise DataError(f"{path}: no {what} in this folder")
            found |= shown
    return sorted(found, key=lambda path: natural_key(str(path)))

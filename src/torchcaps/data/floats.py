"""Arrays whose values are not those of pictures, such as normalized images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from torchcaps.data.dataset import ImageSet, check_images
from torchcaps.data.preprocess import Picture, Preprocess
from torchcaps.errors import DataError, check_shape


@dataclass(frozen=True)
class ArrayPreprocess(Preprocess, kind="arrays"):
    """Takes arrays as they are: the caller prepares them as those of the training."""

    def __call__(
        self, image: Picture | bytes, name: str | None = None
    ) -> Float[Tensor, "channels height width"]:
        """One array as float32 `[channels, height, width]`.

        Args:
            image: an array or tensor of that shape.
            name: what errors call it.

        Raises:
            DataError: a file or a picture, whose values would not be those of the training.
        """
        if not isinstance(image, np.ndarray | Tensor):
            raise DataError(
                f"{name or 'image'}: expected an array that is prepared as those of the training, "
                f"whose values were not in [0, 1], got {type(image).__name__}"
            )
        values = torch.as_tensor(image).float()
        height, width = self.img_size
        check_shape(
            name or "image",
            values,
            ("channels", "height", "width"),
            channels=self.in_chans,
            height=height,
            width=width,
        )
        return self.finish(values[None])[0]


@dataclass(frozen=True, eq=False, repr=False)
class ArraySet(ImageSet):
    """Images whose values may be any finite numbers, as after a normalization.

    Attributes:
        images: float32.
        labels: indices into `classes`.
        classes: names of the classes, in the order of the labels.
        name: name of the set in tables and reports.
        factors: what else is known of each image, by name.
        groups: `[n]` integers, equal for images of one thing; see `ImageSet`.
        notes: sentences about what was read and what was left out.
    """

    preprocess: ClassVar[type[Preprocess]] = ArrayPreprocess

    def _check_images(self) -> None:
        check_images(self.name, self.images)
        if self.images.dtype != torch.float32:
            raise DataError(f"{self.name}: expected float32, got {self.images.dtype}")
        if not self.images.isfinite().all():
            raise DataError(f"{self.name}: expected finite numbers, got NaN or infinite ones")

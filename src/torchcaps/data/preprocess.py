"""From a file, a Pillow image or an array to the tensor that a trained model takes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Shaped
from PIL import Image
from torch import Tensor

from torchcaps.data.form import Form, Prepared
from torchcaps.data.images import decode_image, is_image_file
from torchcaps.data.pixels import (
    Array,
    HeightWidth,
    Size,
    array_images,
    center_crop,
    check_finite,
    check_images,
    check_pixels,
    fit_images,
    size_pair,
    tensor_array,
    to_channels,
    to_float,
)
from torchcaps.errors import DataError, check_shape
from torchcaps.registry import Registry
from torchcaps.types import Json, StrPath

MAX_SIDE = 8192  # pixels: a file may ask for any number
MAX_REPR = 400  # characters of a description in an error
Picture = StrPath | Image.Image | Array


def read_picture(
    image: Picture | bytes, size: Size, in_chans: int, name: str | None
) -> Shaped[Tensor, "1 channels height width"]:
    """The pixels of one image, uint8, or floats in [0, 1].

    Args:
        image: as `Preprocess` takes it.
        size: (height, width) to resize to; None keeps the image's.
        in_chans: channels of the outcome.
        name: what errors call the image; None takes the path.

    Raises:
        DataError: unreadable, of an unclear layout, or out of range.
    """
    if not isinstance(image, Array):
        return decode_image(image, size, in_chans, name=name)[None]
    images = array_images("image", tensor_array(torch.as_tensor(image))[None], in_chans)
    return fit_images(images, size, in_chans).clone()


@dataclass(frozen=True)
class Preprocess:
    """Prepare an image for a model: decode, set the channels, resize, scale to [0, 1], crop.

    Attributes:
        img_size: (height, width) to resize to, at most 8192; without a crop, what the model takes.
        in_chans: 1 or 3 for image files; arrays may have any number that the model takes.
        crop: side of the square that is cut out of the middle after resizing.
        form: of the training images, into which pictures are brought; None brings them nowhere.
        kind: what the model takes, and the name of this class in files.

    Raises:
        DataError: at construction, when a size is out of range, or the crop larger than the image.
    """

    img_size: HeightWidth
    in_chans: int
    crop: int | None = None
    form: Form | None = None
    kind: ClassVar[str] = "images"

    def __init_subclass__(cls, kind: str) -> None:
        super().__init_subclass__()
        cls.kind = kind
        PREPROCESSES.add(kind, cls)

    def __post_init__(self) -> None:
        object.__setattr__(self, "img_size", size_pair(self.img_size))
        if max(self.img_size) > MAX_SIDE:
            raise DataError(
                f"img_size: expected at most {MAX_SIDE} pixels a side, got {self.img_size}"
            )
        if self.in_chans < 1:
            raise DataError(f"in_chans: expected at least 1, got {self.in_chans}")
        if self.crop is not None and not 1 <= self.crop <= min(self.img_size):
            raise DataError(
                f"crop: expected from 1 to {min(self.img_size)} pixels, got {self.crop}"
            )

    @classmethod
    def check(cls, source: str, inputs: Tensor) -> None:
        """Check that inputs of a set are of this kind.

        Args:
            source: beginning of the DataError.
            inputs: of the set.
        """
        check_images(source, inputs)
        check_pixels(source, inputs)

    @classmethod
    def resize(cls, source: str, inputs: Tensor, img_size: Size, in_chans: int | None) -> Tensor:
        """Inputs of a set at another size and number of channels.

        Args:
            source: beginning of an error.
            inputs: of the set.
            img_size: see `fit_images`.
            in_chans: see `fit_images`.

        Returns:
            The inputs.

        Raises:
            DataError: a size for inputs that have their own, or another change of channels.
        """
        return fit_images(inputs, img_size, in_chans)

    @classmethod
    def size_in_words(cls, shape: Sequence[int]) -> str:
        """Sides and channels of an input.

        Args:
            shape: of all inputs of a set.

        Returns:
            The words.
        """
        _, channels, height, width = shape
        colors = {1: "gray", 3: "color"}.get(channels, f"{channels} channels")
        return f"{width} × {height} pixels (width × height), {colors}"

    @property
    def is_picture(self) -> bool:
        """Whether what the model takes can be shown as a picture."""
        return self.kind == Preprocess.kind

    @property
    def target_size(self) -> Size:
        """(height, width) that an image is resized to; None leaves it as it is."""
        return self.img_size

    @property
    def model_size(self) -> HeightWidth:
        """(height, width) of what the model gets."""
        return (self.crop, self.crop) if self.crop else self.img_size

    def is_input(self, path: str) -> bool:
        """Whether a file in a folder is one to predict, by its name, or else by how it begins.

        Args:
            path: of the file, or a name with an ending.

        Returns:
            Whether it is.
        """
        return is_image_file(path)

    def __call__(
        self, image: Picture | bytes, name: str | None = None
    ) -> Float[Tensor, "channels height width"]:
        """One image as the model takes it, float32 `[channels, *model_size]`, in [0, 1].

        Args:
            image: a path; the bytes of a file; a Pillow image; or an array or tensor of one image,
                as `read_arrays` takes them.
            name: what errors call the image; None takes the path.

        Raises:
            DataError: unreadable, of an unclear layout, or out of range.
        """
        return self.prepare(image, name).pixels

    def prepare(
        self, image: Picture | bytes, name: str | None = None, invert: str = "auto"
    ) -> Prepared:
        """One image, brought into the form of the training images unless it has that form.

        Args:
            image: as of a call.
            name: as of a call.
            invert: "auto" inverts an image with another polarity; "yes" and "no" decide it.

        Returns:
            The image, what was done to it, and why it shows nothing.

        Raises:
            DataError: as of a call.
        """
        images = read_picture(image, self.target_size, self.in_chans, name)
        if self.crop:
            images = center_crop(images, self.crop)
        pixels = to_float(images)[0]
        if self.form is None:
            return Prepared(1 - pixels, "inverted") if invert == "yes" else Prepared(pixels)
        is_gray = (pixels == pixels[:1]).all()
        if invert != "yes" and is_gray and self.form.fits(pixels[0].numpy()):
            return Prepared(pixels)
        if isinstance(image, Array):
            gray = to_float(to_channels(read_picture(image, None, self.in_chans, name), 1))[0]
        else:  # on the page that shows more of it
            pages = [
                to_float(decode_image(image, None, 1, name=name, background=color))
                for color in ("black", "white")
            ]
            gray = max(pages, key=lambda page: float(page.std()))
        prepared = self.form.bring(gray[0].numpy(), self.model_size, invert)
        return prepared._replace(pixels=prepared.pixels.repeat(self.in_chans, 1, 1))

    def to_dict(self) -> Json:
        """Plain values for JSON: `img_size`, `in_chans`; `crop`, `form`, `kind` where set."""
        settings = asdict(self) | {"img_size": list(self.img_size)}
        if not self.is_picture:
            settings["kind"] = self.kind
        return {name: setting for name, setting in settings.items() if setting is not None}

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> "Preprocess":
        """The inverse of `to_dict`.

        Args:
            settings: of `to_dict`, or read from JSON.

        Returns:
            The preprocessing.

        Raises:
            DataError: a value is missing or of another type.
        """
        try:
            preprocess_class = PREPROCESSES[settings.get("kind", Preprocess.kind)]
            height, width = settings["img_size"]
            channels = settings["in_chans"]
            crop = settings.get("crop")
            form = settings.get("form") and Form(**settings["form"])
            if set(map(type, (height, width, channels, crop or 0))) != {int}:
                raise TypeError
        except (AttributeError, KeyError, TypeError, ValueError):
            raise DataError(
                "preprocess: expected img_size [height, width] and in_chans, "
                f"got {repr(settings)[:MAX_REPR]}"
            ) from None
        return preprocess_class((height, width), channels, crop, form)


PREPROCESSES: Registry[type[Preprocess]] = Registry("kind of input")
PREPROCESSES.add(Preprocess.kind, Preprocess)


@dataclass(frozen=True)
class OwnSizePreprocess(Preprocess, kind="sizes"):
    """Takes pictures at their own size, which is `img_size` or larger."""

    target_size = None

    @classmethod
    def resize(cls, source: str, inputs: Tensor, img_size: Size, in_chans: int | None) -> Tensor:
        if img_size is not None:
            raise DataError(f"img_size: expected None for images of several sizes, got {img_size}")
        return super().resize(source, inputs, img_size, in_chans)


@dataclass(frozen=True)
class ArrayPreprocess(Preprocess, kind="arrays"):
    """Takes arrays of any finite numbers, as after a normalization, as the caller prepares them."""

    @classmethod
    def check(cls, source: str, inputs: Tensor) -> None:
        check_images(source, inputs)
        if inputs.dtype != torch.float32:
            raise DataError(f"{source}: expected float32, got {inputs.dtype}")
        check_finite(source, inputs, "array")

    def prepare(
        self, image: Picture | bytes, name: str | None = None, invert: str = "auto"
    ) -> Prepared:
        """One array as float32 `[channels, height, width]`.

        Args:
            image: an array or tensor of that shape.
            name: what errors call it.
            invert: of pictures alone.

        Raises:
            DataError: a file or a picture, whose values would not be those of the training.
        """
        if not isinstance(image, Array):
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
        if self.crop:
            values = center_crop(values[None], self.crop)[0]
        return Prepared(values)

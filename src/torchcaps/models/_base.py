"""What models of images share: their sizes, the check of their images, their table."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_floating, check_positive, check_shape
from torchcaps.functional import standardize
from torchcaps.functional.bounds import autocast_dtype, clamp_finite, full_precision, gradient_limit
from torchcaps.models.notebook import model_card, parameter_count
from torchcaps.nn import FullyConnectedDecoder, mask_capsules
from torchcaps.nn.decoder import ImageShape as ImageShape, draw_shape
from torchcaps.types import Capsules, ModelSpec

ImageSize = int | tuple[int, int]  # height and width in pixels, or one number for both
Images = Float[Tensor, "batch channels height width"]
FeatureMap = Float[Tensor, "batch channels rows columns"]
Classes = Float[Tensor, "batch classes"]
Sizes = tuple[int, ...]  # of layers, such as their channels


def side_after(side: int, windows: Sequence[tuple[int, int]]) -> int:
    """Side of the map that convolutions without padding leave of an image.

    Args:
        side: rows or columns of the image.
        windows: (kernel, stride) of each convolution.
    """
    for kernel, stride in windows:
        side = (side - kernel) // stride + 1
    return side


def side_before(side: int, windows: Sequence[tuple[int, int]]) -> int:
    """Side of the smallest image of which convolutions leave a map of this side.

    Args:
        side: rows or columns of the map.
        windows: (kernel, stride) of each convolution.
    """
    for kernel, stride in reversed(windows):
        side = (side - 1) * stride + kernel
    return side


def no_decoder() -> ArgumentError:
    """The error of a drawing by a model that has no decoder although it could have one."""
    return ArgumentError(
        "reconstruct", "this model has no decoder (it was built with decoder=False)"
    )


class ImageModel(nn.Module, ABC):
    """Base of models that take images of one size and return activations of class capsules.

    Where the specification declares `any_size`, that is the smallest size.

    Images are `[batch, in_chans, height, width]` in [0, 1], outputs `[batch, num_classes]` in
    [0, 1]. Outputs are no logits and, unless a model says so, do not sum to one.

    Args:
        num_classes: of a model that has classes, else None.
        in_chans: channels of the images.
        img_size: (height, width) or one number for both.
        smallest: side of the smallest image in pixels, by default that of `spec`.
        sizes: other numbers by name, at least 1.

    Raises:
        ValueError: for images that are too small, a size below one, or another argument that a
            model cannot take.
    """

    num_classes: int
    spec = ModelSpec()
    # Give every image mean 0 and standard deviation 1 first, as for smallNORB.
    standardized = False

    def __init__(
        self,
        num_classes: int | None,
        in_chans: int,
        img_size: ImageSize,
        *,
        smallest: int | None = None,
        **sizes: int,
    ) -> None:
        super().__init__()
        height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
        check_positive(in_chans=in_chans, **sizes)
        if smallest is None:
            smallest = self.spec.smallest
        if min(height, width) < smallest:
            raise ArgumentError(
                "img_size",
                f"expected images of at least {smallest}x{smallest} pixels, got {height}x{width}",
            )
        self.declare(smallest=smallest)
        self.in_chans = in_chans
        self.img_size = (height, width)
        self.image_shape = (in_chans, height, width)
        if num_classes is not None:
            check_positive(num_classes=num_classes)
            self.num_classes = num_classes

    def declare(self, **facts: Any) -> None:
        """Change the specification of this model alone.

        Args:
            facts: fields of `ModelSpec`, by name.
        """
        self.spec = replace(self.spec, **facts)

    @abstractmethod
    def capsules(self, images: Images) -> Capsules:
        """Class capsules of images.

        Returns:
            Pose `[batch, num_classes, dim]`, activation `[batch, num_classes]` in [0, 1].
        """

    def forward(self, images: Images) -> Classes:
        """Activations of the class capsules, in [0, 1]; not logits."""
        return self.capsules(images).activation

    def reconstruct(self, capsules: Any, labels: Tensor | None = None) -> Tensor:
        """Raise ValueError: this model has no decoder."""
        raise ArgumentError("reconstruct", f"{type(self).__name__} has no decoder")

    @property
    def draw_size(self) -> tuple[int, int]:
        """Height and width of what a decoder draws, at most those of the images."""
        return self.spec.draw_size or self.img_size

    def _check(self, images: Tensor) -> None:
        """Raise ArgumentError unless images are of the model's shape and of its weights' type.

        Autocast takes any floating point but float64.
        """
        height, width = self.img_size
        note = ""
        if images.dim() == 4 and images.shape[2:] != self.img_size:
            note = (
                f"; {type(self).__name__} has weights for each place of its img_size: resize, or "
                "build it anew"
            )
        if self.spec.any_size and images.dim() == 4:
            note = f"; this network takes {height}x{width} pixels, its img_size, and larger images"
            height, width = max(height, images.shape[2]), max(width, images.shape[3])
        sizes = {"channels": self.in_chans, "height": height, "width": width}
        try:
            check_shape("images", images, ["batch", *sizes], **sizes)
        except ArgumentError as error:
            raise ArgumentError("images", str(error).removeprefix("images: ") + note) from None
        check_floating(images=images)
        dtype = next(self.parameters()).dtype
        is_cast = autocast_dtype(images) is not None
        if images.dtype != dtype and (not is_cast or torch.float64 in (images.dtype, dtype)):
            raise ArgumentError(
                "images", f"expected {dtype}, as the weights are, got {images.dtype}"
            )

    def _prepare(self, images: Tensor) -> Tensor:
        """Images for the first layer: checked, bounded by 2^24, and standardized if asked.

        The bound keeps huge numbers from overflowing.
        """
        self._check(images)
        images = clamp_finite(images, gradient_limit)
        return standardize(images).to(images.dtype) if self.standardized else images

    def _repr_html_(self) -> str:
        return model_card(self)


class DrawingModel(ImageModel):
    """Base of networks with a decoder of masked poses, unless they are built without one.

    Attributes:
        decoder: the decoder, or None.
    """

    decoder: nn.Module | None

    def reconstruct(
        self, capsules: Capsules, labels: Int64[Tensor, " batch *place"] | None = None
    ) -> Images:
        """Draw images from one class capsule each.

        Args:
            capsules: class capsules.
            labels: class of each image; by default that of the most active capsule.

        Returns:
            Images in [0, 1], of the model's `img_size`.

        Raises:
            ValueError: if the model was built without a decoder.
        """
        drawings = self.draw(capsules, labels)
        if drawings.shape[2:] == self.img_size:
            return drawings
        return nn.functional.interpolate(drawings, self.img_size, mode="bilinear")

    def draw(self, capsules: Capsules, labels: Tensor | None = None) -> Images:
        """Draw images at the size of the decoder's drawings, `draw_size`.

        Args:
            capsules: class capsules.
            labels: class of each image; by default that of the most active capsule.

        Returns:
            Images in [0, 1].

        Raises:
            ValueError: if the model was built without a decoder.
        """
        if self.decoder is None:
            raise no_decoder()
        return self.decoder(self.masked(capsules, labels))

    def masked(self, capsules: Capsules, labels: Tensor | None) -> Tensor:
        """The input of the decoder: poses of which all but one are zero."""
        return mask_capsules(capsules, labels)

    def _add_decoder(self, decoder_class: Any, *sizes: int, **options: Any) -> None:
        """Build the decoder, after all other modules.

        Args:
            decoder_class: has a `published_shape`; see `FullyConnectedDecoder`.
            sizes: its arguments before the shape of the images.
            options: its other arguments.
        """
        build = partial(decoder_class, *sizes, **options)
        self.decoder = build(self._choose_shape(build, decoder_class.published_shape))

    def _add_dense_decoder(
        self, decoder: bool | tuple[int, int] | None, class_dim: int, **options: Any
    ) -> None:
        """Build a `FullyConnectedDecoder` if asked, whose hidden widths `decoder` may say."""
        self.decoder = None
        if decoder:
            if not isinstance(decoder, bool):
                options["hidden"] = decoder
            self._add_decoder(FullyConnectedDecoder, self.num_classes, class_dim, **options)

    def _choose_shape(
        self, build: Callable[[ImageShape], nn.Module], published_shape: ImageShape
    ) -> ImageShape:
        """The shape that a decoder beside the other modules draws, which `spec` declares."""
        shape = draw_shape(build, self.image_shape, published_shape, parameter_count(self))
        self.declare(decoder=True, draw_size=None if shape == self.image_shape else shape[1:])
        return shape


class LogitModel(ImageModel):
    """Base of networks whose outputs are probabilities, made of logits.

    They sum to one unless there is a sigmoid for each. The cross-entropy starts from the logits.
    """

    spec = ModelSpec(pose=True, activation="probability", logits=True)
    multilabel = False  # a sigmoid for each class in place of one softmax

    def logits(self, images: Images) -> Classes:
        """Logits of the classes: any numbers."""
        return self.logits_of(self.capsules(images))

    def logits_of(self, capsules: Capsules) -> Classes:
        """Logits of class capsules, in networks that make them of capsules."""
        raise NotImplementedError(f"{type(self).__name__} makes no logits of capsules")

    def probabilities(self, logits: Classes) -> Classes:
        """Softmax over classes, or a sigmoid for each; half precision gives float32."""
        logits = full_precision(logits)
        return logits.sigmoid() if self.multilabel else logits.softmax(dim=1)


class PlainNetwork(LogitModel):
    """Base of networks without capsules: images to probabilities `[batch, num_classes]`.

    Args:
        num_classes: number of classes.
        in_chans: channels of the images.
        img_size: (height, width) or one number for both.
        smallest: side of the smallest image in pixels, by default that of `spec`.
        multilabel: an image may show several classes: there is a sigmoid for each in place of one
            softmax.
        standardized: give every image mean 0 and standard deviation 1 first.
    """

    spec = ModelSpec(activation="probability", logits=True)

    def __init__(
        self,
        num_classes: int,
        in_chans: int,
        img_size: ImageSize,
        *,
        smallest: int | None = None,
        multilabel: bool = False,
        standardized: bool = False,
    ) -> None:
        super().__init__(num_classes, in_chans, img_size, smallest=smallest)
        self.multilabel = multilabel
        self.standardized = standardized
        self.declare(multilabel=multilabel)

    @abstractmethod
    def scores(self, x: Images) -> Classes:
        """Logits of images that are checked and, if asked, standardized."""

    def logits(self, images: Images) -> Classes:
        return self.scores(self._prepare(images))

    def forward(self, images: Images) -> Classes:
        """Probabilities of the classes."""
        return self.probabilities(self.logits(images))

    def capsules(self, images: Tensor) -> NoReturn:
        """Raise ValueError: there are no capsules."""
        raise ArgumentError(
            "capsules", "expected a capsule network; this is a CNN, whose classes have no pose"
        )

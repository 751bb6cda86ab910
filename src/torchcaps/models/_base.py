"""What models of images share: their sizes, the check of what they get, and the table that a notebook shows."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, check_floating, check_positive, check_shape
from torchcaps.functional import standardize
from torchcaps.functional.bounds import clamp_finite, steady_limit
from torchcaps.functional.squash import full_precision
from torchcaps.models.notebook import Stage, measured_stages, model_card
from torchcaps.nn import mask_capsules
from torchcaps.types import Capsules, ModelSpec

ImageSize = int | tuple[int, int]  # height and width in pixels, or one number for both
Images = Float[Tensor, "batch channels height width"]
FeatureMap = Float[Tensor, "batch channels rows columns"]
Classes = Float[Tensor, "batch classes"]


def side_after(side: int, layers: Sequence[tuple[int, int]]) -> int:
    """Rows or columns of the map that layers of these (kernel, stride), without padding, make of an image's."""
    for kernel, stride in layers:
        side = (side - kernel) // stride + 1
    return side


def side_before(side: int, layers: Sequence[tuple[int, int]]) -> int:
    """Pixels that leave so many rows or columns after these layers."""
    for kernel, stride in reversed(layers):
        side = (side - 1) * stride + kernel
    return side


def check_dtype(argument: str, tensor: Tensor, module: nn.Module) -> None:
    """ArgumentError unless a tensor is of the type of a module's weights; autocast takes any float but float64."""
    check_floating(**{argument: tensor})
    weight, device = next(module.parameters()), tensor.device.type
    if tensor.dtype == weight.dtype:
        return
    casting = device != "meta" and torch.is_autocast_enabled(device)
    if not casting or torch.float64 in (tensor.dtype, weight.dtype):
        raise ArgumentError(
            argument, f"expected {weight.dtype}, as the weights are, got {tensor.dtype}"
        )


class ImageModel(nn.Module, ABC):
    """Base of models: images `[batch, in_chans, height, width]` of one size, in [0, 1], to activations of class
    capsules `[batch, num_classes]` in [0, 1], which are no logits and, unless a model says so, do not sum to one.

    Args:
        num_classes: of a model that has classes, else None.
        in_chans: channels of the images.
        img_size: (height, width) or one number for both.
        smallest: side of the smallest image in pixels.
        sizes: other numbers by name, at least 1.

    Raises:
        ValueError: for images that are too small, a size below one, or another argument that a model cannot take.
    """

    num_classes: int
    standardized = False  # give every image mean 0 and standard deviation 1 first, as for smallNORB

    def __init__(
        self,
        num_classes: int | None,
        in_chans: int,
        img_size: ImageSize,
        smallest: int = 1,
        **sizes: int,
    ) -> None:
        super().__init__()
        height, width = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
        check_positive(in_chans=in_chans, **sizes)
        if min(height, width) < smallest:
            raise ArgumentError(
                "img_size",
                f"expected images of at least {smallest}x{smallest} pixels, got {height}x{width}",
            )
        self.in_chans, self.img_size = in_chans, (height, width)
        if num_classes is not None:
            check_positive(num_classes=num_classes)
            self.num_classes = num_classes

    @abstractmethod
    def capsules(self, images: Images) -> Capsules:
        """Class capsules: pose `[batch, num_classes, dim]`, activation `[batch, num_classes]` in [0, 1]."""

    def forward(self, images: Images) -> Classes:
        """Activations of the class capsules, in [0, 1]; not logits."""
        return self.capsules(images).activation

    def reconstruct(self, capsules: Any, labels: Tensor | None = None) -> Tensor:
        """Images drawn from capsules; ValueError, as here there is no decoder."""
        raise ArgumentError("reconstruct", f"{type(self).__name__} has no decoder")

    def notebook_stages(self) -> list[Stage]:
        """The stages in their order, with shapes measured on a copy of the model without weights."""
        return measured_stages(self)

    def _check(self, images: Tensor) -> None:
        axes, (height, width) = ("batch", "channels", "height", "width"), self.img_size
        check_shape("images", images, axes, channels=self.in_chans, height=height, width=width)
        check_dtype("images", images, self)

    def _prepare(self, images: Tensor) -> Tensor:
        """Images for the first layer: checked, clamped beyond 2^24 so that nothing overflows, standardized if asked."""
        self._check(images)
        images = clamp_finite(images, steady_limit)
        return standardize(images).to(images.dtype) if self.standardized else images

    def _repr_html_(self) -> str:
        return model_card(self)


class DrawingModel(ImageModel):
    """Base of networks with a decoder, unless they are built without one: it takes poses that are masked."""

    decoder: nn.Module | None

    def reconstruct(
        self, capsules: Capsules, labels: Int64[Tensor, " batch *place"] | None = None
    ) -> Images:
        """Images in [0, 1], drawn from one class capsule each: the labeled one, or else the most active one.

        ValueError if the model was built without a decoder."""
        if self.decoder is None:
            raise ArgumentError(
                "reconstruct", "this model has no decoder (it was built with decoder=False)"
            )
        return self.decoder(self.masked(capsules, labels))

    def masked(self, capsules: Capsules, labels: Tensor | None) -> Tensor:
        """What the decoder sees of capsules."""
        return mask_capsules(capsules, labels)


class LogitModel(ImageModel):
    """Base of networks whose outputs are probabilities, which sum to one unless there is a sigmoid for each: they are
    made of logits, which the cross-entropy starts from."""

    multilabel = False  # a sigmoid for each class in place of one softmax

    def logits(self, images: Images) -> Classes:
        """What the probabilities are made of, and the cross-entropy starts from: any numbers."""
        return self.logits_of(self.capsules(images))

    def logits_of(self, capsules: Capsules) -> Classes:
        """The logits that class capsules stand for, unless a network makes them of something else."""
        raise NotImplementedError(f"{type(self).__name__} makes no logits of capsules")

    def probabilities(self, logits: Classes) -> Classes:
        """Softmax over classes, or a sigmoid for each; half precision gives float32."""
        logits = full_precision(logits)
        return logits.sigmoid() if self.multilabel else logits.softmax(dim=1)


class PlainNetwork(LogitModel):
    """Base of networks without capsules: images to probabilities `[batch, num_classes]`, which sum to one unless an
    image may show `multilabel` classes: then there is a sigmoid for each. See `ImageModel` for other arguments, and
    `logits` for what probabilities are made of."""

    def __init__(
        self,
        num_classes: int,
        in_chans: int,
        img_size: ImageSize,
        smallest: int = 1,
        *,
        multilabel: bool = False,
        standardized: bool = False,
    ) -> None:
        super().__init__(num_classes, in_chans, img_size, smallest)
        self.multilabel, self.standardized = multilabel, standardized
        self.spec = ModelSpec(
            activation="probability", logits=True, multilabel=multilabel, smallest=smallest
        )

    @abstractmethod
    def scores(self, x: Images) -> Classes:
        """Logits of images that are checked and, if asked, standardized."""

    def logits(self, images: Images) -> Classes:
        return self.scores(self._prepare(images))

    def forward(self, images: Images) -> Classes:
        return self.probabilities(self.logits(images))

    def capsules(self, images: Tensor) -> NoReturn:
        raise ArgumentError(
            "capsules", "expected a capsule network; this is a CNN, whose classes have no pose"
        )

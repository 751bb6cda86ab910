"""A capsule head, or its linear control, on a backbone that was pretrained elsewhere.

Not a published system: a frozen or fine-tuned backbone with one layer of routed capsules, as in the
comparisons of Hahn et al. 2019 (NeurIPS) and with Heinsen's routing on frozen transformers (arXiv
2211.11754). The control has the same backbone, the mean over positions and a linear layer.
"""

from abc import abstractmethod
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from torchcaps.errors import ArgumentError, check_known, check_positive, check_range, one_line
from torchcaps.models._backbones import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Backbone,
    Channels,
    create_backbone,
    transformers_recipe,
)
from torchcaps.models._base import Classes, FeatureMap, ImageModel, Images, ImageSize, PlainNetwork
from torchcaps.models._registry import ModelInfo, check_sizes, register_model, register_variant
from torchcaps.models.notebook import parameter_count
from torchcaps.nn.head import MAX_POSITIONS, CapsuleHead, as_map, check_features, pool_positions
from torchcaps.types import Capsules, ModelMetadata, check_module, set_model_metadata

LARGER = 32  # pixels a side, of the trial of another size: a multiple of the usual strides


class FeatureExtractor(nn.Module):
    """Images in [0, 1] -> normalization -> backbone -> feature map of at most so many positions.

    A sequence becomes a map of one row, a vector a map of one position.

    Args:
        backbone: the module, with mean and standard deviation of its images. The batch norms of a
            pretrained one keep their statistics, which a few small batches would spoil.
        in_chans: channels of the images: those of the backbone, or 1, which is repeated.
        img_size: height and width of the images.
        freeze: whether its weights are fixed.
        max_positions: see `CapsuleHead`.

    Attributes:
        shape: of the features of an image, (features, rows, columns).
        any_size: whether the backbone takes larger images, too, by a trial.

    Raises:
        ArgumentError: the backbone takes no such images, or returns no features.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: Backbone,
        in_chans: int,
        img_size: tuple[int, int],
        *,
        freeze: bool,
        max_positions: int,
    ) -> None:
        super().__init__()
        channels = len(backbone.mean)
        if in_chans not in (1, channels):
            raise ArgumentError(
                "in_chans", f"expected 1 or {channels}, as the backbone was trained, got {in_chans}"
            )
        check_positive(max_positions=max_positions)
        self.module = backbone.module
        self.max_positions = max_positions
        self.freeze = freeze
        self.is_pretrained = backbone.is_pretrained
        self.register_buffer("mean", torch.tensor(backbone.mean).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(backbone.std).view(-1, 1, 1))
        if freeze:
            self.module.requires_grad_(False)
        self.shape = self._measure(torch.zeros(1, in_chans, *img_size))
        self.any_size = True
        try:
            self._measure(torch.zeros(1, in_chans, *(side + LARGER for side in img_size)))
        except ArgumentError:
            self.any_size = False
        self.train()

    def _measure(self, images: Tensor) -> tuple[int, ...]:
        """Shape of the features of such images, by one pass."""
        self.eval()
        try:
            with torch.no_grad():
                features = self(images.to(next(self.parameters(), images).device))
        except ArgumentError:
            raise
        except (RuntimeError, ValueError, TypeError) as error:
            raise ArgumentError(
                "backbone",
                f"takes no images of {images.shape[2]}x{images.shape[3]} pixels "
                f"({one_line(str(error))})",
            ) from error
        return tuple(features.shape[1:])

    def train(self, mode: bool = True) -> "FeatureExtractor":
        """Set the mode; what is fixed stays in evaluation mode.

        Args:
            mode: True for training.
        """
        super().train(mode)
        if self.freeze:
            self.module.eval()
        elif self.is_pretrained:
            for layer in self.module.modules():
                if isinstance(layer, _BatchNorm):
                    layer.eval()
        return self

    def forward(self, images: Images) -> FeatureMap:
        x = (images - self.mean) / self.std  # one channel becomes as many as the mean has
        features = last_features(self.module(x))
        check_features(features)
        return as_map(pool_positions(features, self.max_positions)).movedim(-1, 1)


def last_features(output: Any) -> Tensor:
    """The features that a backbone returned, as a tensor or within an object of transformers."""
    if isinstance(output, Tensor):
        return output
    maps = getattr(output, "feature_maps", None)
    features = maps[-1] if maps else getattr(output, "last_hidden_state", None)
    if features is None:
        raise ArgumentError(
            "backbone",
            "expected a tensor, or an object with feature_maps or last_hidden_state, "
            f"got {type(output).__name__}",
        )
    return features


class LinearHead(nn.Module):
    """The mean over positions, a layer with ReLU if asked, and the logits of the classes.

    Args:
        in_features: channels of the maps.
        num_classes: number of classes.
        hidden: units of the layer between; 0 for none.
    """

    def __init__(self, in_features: int, num_classes: int, *, hidden: int = 0) -> None:
        super().__init__()
        check_range("hidden", hidden, low=0)
        self.layers = nn.Sequential()
        if hidden:
            self.layers.extend([nn.Linear(in_features, hidden), nn.ReLU()])
        self.layers.append(nn.Linear(hidden or in_features, num_classes))

    def forward(self, features: FeatureMap) -> Classes:
        return self.layers(features.mean(dim=(2, 3)))


class _OnBackbone(ImageModel):
    """Base of both networks; they take images, or features that `backbone` gave of them.

    Args:
        backbone: with its normalization.
        num_classes: number of classes.
        in_chans: channels of the images.
        img_size: height and width of the images, or one number for both.
        freeze: whether the weights of the backbone are fixed.
        max_positions: of the map of features; see `nn.CapsuleHead`.
        head_options: of the head.

    Attributes:
        backbone: the `FeatureExtractor`.
        head: from feature maps to the outputs of the classes.
    """

    def __init__(
        self,
        backbone: Backbone,
        num_classes: int,
        in_chans: int,
        img_size: ImageSize,
        *,
        freeze: bool,
        max_positions: int = MAX_POSITIONS,
        **head_options: Any,
    ) -> None:
        super().__init__(num_classes, in_chans, img_size)
        self.backbone = FeatureExtractor(
            backbone, in_chans, self.img_size, freeze=freeze, max_positions=max_positions
        )
        self.head = self._build_head(**head_options)
        self.declare(features=self.takes_features, any_size=self.backbone.any_size)

    @abstractmethod
    def _build_head(self, **options: Any) -> nn.Module:
        """The head, for the maps of the backbone."""

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """Shape of the features of an image, `(features, rows, columns)`."""
        return self.backbone.shape

    @property
    def takes_features(self) -> bool:
        """Whether features stand for images: of a frozen backbone, if their shapes differ."""
        return self.backbone.freeze and self.feature_shape != self.image_shape

    def features(self, images: Images) -> Float[Tensor, "batch features rows columns"]:
        """Feature maps of images; stored features of a frozen backbone are passed on.

        Args:
            images: in [0, 1], or features.
        """
        if self.takes_features and tuple(images.shape[1:]) == self.feature_shape:
            return images
        return self.backbone(self._prepare(images))


class CapsuleHeadNetwork(_OnBackbone):
    """Backbone -> primary capsules at each position -> class capsules.

    Args:
        sizes: the backbone, the number of classes, channels and size of the images.
        options: `freeze` and `max_positions`; and of the head `routing`, `types`, `dim` and options
            of the routing; see `nn.CapsuleHead`.
    """

    def __init__(self, *sizes: Any, **options: Any) -> None:
        super().__init__(*sizes, **options)
        is_length = self.head.activation == "length"
        self.declare(
            pose=True,
            activation="length" if is_length else "probability",
            loss="margin" if is_length else "likelihood",
        )

    def _build_head(self, **options: Any) -> nn.Module:
        options["max_positions"] = self.backbone.max_positions
        return CapsuleHead(self.backbone.shape[0], self.num_classes, **options)

    def capsules(self, images: Images) -> Capsules:
        return self.head(self.features(images))


class LinearHeadNetwork(_OnBackbone, PlainNetwork):
    """The control: backbone -> mean over positions -> linear layer.

    Args:
        sizes: the backbone, the number of classes, channels and size of the images.
        options: `freeze` and `max_positions`; and of the head `hidden`, units of a layer with ReLU
            before the classes, 0 for none.
    """

    def _build_head(self, **options: Any) -> nn.Module:
        return LinearHead(self.backbone.shape[0], self.num_classes, **options)

    def logits(self, images: Images) -> Classes:
        return self.scores(self.features(images))

    def scores(self, x: FeatureMap) -> Classes:
        return self.head(x)


HEADS: dict[str, Any] = {"capsule": CapsuleHeadNetwork, "linear": LinearHeadNetwork}


def with_backbone(
    module: nn.Module,
    num_classes: int,
    in_chans: int = 3,
    img_size: ImageSize = 224,
    *,
    head: Literal["capsule", "linear"] = "capsule",
    pretrained: bool = True,
    freeze: bool | None = None,
    mean: Channels = IMAGENET_MEAN,
    std: Channels = IMAGENET_STD,
    **options: Any,
) -> nn.Module:
    """A network of class capsules on a backbone, for images in [0, 1].

    Args:
        module: maps normalized images to feature maps, a sequence or vectors, or is a vision model
            of transformers; see `Backbone`. It becomes a part of the network.
        num_classes: number of classes.
        in_chans: channels of the images: those of `mean`, or 1, which is repeated.
        img_size: height and width in pixels, or one number for both.
        head: "capsule", or "linear", its control.
        pretrained: whether the module was trained before. If so, its batch norms keep their
            statistics, whether it is frozen or not.
        freeze: fix the weights of the backbone; by default those of a pretrained one.
        mean: of each channel of the images that the module was trained with, in [0, 1].
        std: of each channel.
        options: of the head: `routing`, `types`, `dim`, `max_positions` and options of the routing;
            of a linear one `hidden` and `max_positions`.

    Returns:
        The network, in training mode, with `backbone` and `head`.

    Raises:
        ArgumentError: sizes or options that do not fit, or a module that takes no such images.

    Example:
        >>> model = with_backbone(encoder, num_classes=5, img_size=128, routing="em")
        >>> tc.fit(model, images, labels, epochs=10)
    """
    check_known("head", head, HEADS)
    check_sizes(num_classes=num_classes, in_chans=in_chans, img_size=img_size)
    check_module(module)
    backbone = Backbone(module, tuple(mean), tuple(std), is_pretrained=pretrained)
    return _build(
        head,
        backbone,
        transformers_recipe(backbone),
        freeze,
        num_classes=num_classes,
        in_chans=in_chans,
        img_size=img_size,
        **options,
    )


def plain_units(head: CapsuleHead) -> int:
    """Units of the hidden layer of a plain head that has as many weights as a capsule head.

    Args:
        head: of capsules.

    Raises:
        ArgumentError: no number of units comes within 5 % of its weights.
    """
    num_weights = parameter_count(head) - head.num_classes
    weights_per_unit = head.in_features + 1 + head.num_classes
    units = round(num_weights / weights_per_unit)
    if abs(units * weights_per_unit - num_weights) > 0.05 * num_weights:
        raise ArgumentError("types", f"expected more than {head.types} for an equal plain head")
    return units


def head_on_features(head: CapsuleHead, kind: str, img_size: ImageSize) -> Any:
    """A network that takes features as images: a head of the same options, or a control of it.

    Args:
        head: of capsules.
        kind: "capsules"; "uniform", the same with equal couplings; "linear"; or "mlp", a plain head
            with a hidden layer and as many weights.
        img_size: rows and columns of the features.

    Returns:
        The network, with new weights.

    Raises:
        ArgumentError: see `plain_units`.
    """
    options = deepcopy(head.options)
    if kind in ("linear", "mlp"):
        options = {"head": "linear", "hidden": plain_units(head) if kind == "mlp" else 0}
    count = head.in_features
    network: Any = with_backbone(
        nn.Identity(),
        head.num_classes,
        count,
        img_size,
        mean=(0.0,) * count,
        std=(1.0,) * count,
        **options,
    )
    if kind == "uniform":
        layer = network.head.class_capsules
        layer.router = layer.router.uniform()
    return network


def _build(
    head: str,
    backbone: Backbone,
    recipe: dict[str, Any] | None,
    freeze: bool | None,
    **options: Any,
) -> Any:
    """A network on a backbone, which remembers how the backbone is built again."""
    if freeze is None:
        freeze = backbone.is_pretrained
    model = HEADS[head](backbone, freeze=freeze, **options)
    if recipe is not None:
        options |= {"img_size": model.img_size, "backbone": recipe, "freeze": freeze}
        set_model_metadata(model, ModelMetadata(name=f"{head}_head", options=options))
    return model


@register_model(
    ModelInfo(
        title="A capsule head on a backbone",
        year=2026,
        img_size=(32, 32),
        in_chans=3,
        parameters=327_472,
        published="none: see docs/backbones.md",
        purpose="capsules on a pretrained network of your own",
        control="linear_head",
        control_options=("backbone", "freeze", "max_positions"),
    ),
    name="capsule_head",
)
def head_on_backbone(
    *,
    head: str = "capsule",
    backbone: str | Mapping[str, Any] = "resnet20",
    freeze: bool | None = None,
    **options: Any,
) -> CapsuleHeadNetwork | LinearHeadNetwork:
    """A head on a backbone by name.

    Args:
        head: "capsule", or "linear", its control.
        backbone: a registered one, a run of this library, or a model of transformers in a folder or
            on the hub; see `_backbones.create_backbone`.
        freeze: fix its weights; by default those of a pretrained one.
        options: of `CapsuleHeadNetwork`, or of `LinearHeadNetwork`.
    """
    network, recipe = create_backbone(backbone)
    return _build(head, network, recipe, freeze, **options)


# The control of `capsule_head`: the same backbone, the mean over positions, a linear layer.
register_variant(
    "linear_head",
    "capsule_head",
    title="A linear head on a backbone",
    parameters=269_722,
    published="none: the control of capsule_head",
    purpose="the plain head that capsule_head is compared with",
    control="",
    control_options=(),
    head="linear",
)

"""Backbones by name: networks that map images to features, pretrained elsewhere or here.

`create_backbone` takes the name of a registered source, the file or run folder of a model of this
library, or the folder or hub name of a model of transformers.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from torchcaps.errors import ArgumentError, one_line
from torchcaps.functional import standardize
from torchcaps.models._pretrained import Arguments, Options, described_sizes, read_description
from torchcaps.models._registry import create_model
from torchcaps.registry import Registry

MODEL_FILE = "model.safetensors"  # of a run folder
# Of ImageNet's images, for which most backbones were trained.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

Channels = tuple[float, ...]  # a number for each channel of images


@dataclass(frozen=True)
class Backbone:
    """A network that maps images to features, and what belongs to it.

    Attributes:
        module: takes normalized images `[batch, channels, height, width]`. It returns feature maps
            `[batch, features, rows, columns]`, a sequence `[batch, length, features]`, vectors
            `[batch, features]`, or an object with one of these as `last_hidden_state`, or as the
            last of its `feature_maps`.
        mean: of each channel of the images, in [0, 1], as it was trained.
        std: of each channel.
        arguments: of its source, JSON-ready, by which it is built again without its weights.
        is_pretrained: whether it is of use as it is; else it is trained by default. The batch norms
            of a pretrained one keep their statistics in any training.
    """

    module: nn.Module
    mean: Channels = IMAGENET_MEAN
    std: Channels = IMAGENET_STD
    arguments: Options = field(default_factory=dict)
    is_pretrained: bool = True


BACKBONES: Registry[Callable[..., Backbone]] = Registry("backbone")

register_backbone = BACKBONES.register
"""Decorator that registers a source of a backbone for the option `backbone` of models.

The function is called with `pretrained`, whether the weights are read; without them it is called
with the `arguments` that it returned, to build the same module.

Example:
    >>> @register_backbone("my_network")
    ... def my_network(pretrained):
    ...     return Backbone(MyNetwork(weights="imagenet" if pretrained else None))
"""


def create_backbone(backbone: str | Options) -> tuple[Backbone, Arguments]:
    """A backbone, and what builds it again without its weights.

    Args:
        backbone: a name or a folder, whose weights are read; or the mapping that this function
            returned before, {"source": name, **arguments}.

    Returns:
        The backbone and this mapping, JSON-ready.

    Raises:
        ArgumentError: there is no such backbone, or it cannot be read.
    """
    arguments: Arguments = {"pretrained": True}
    if isinstance(backbone, Mapping):
        arguments = {**backbone, "pretrained": False}
        source = str(arguments.pop("source", ""))
    elif backbone in BACKBONES:
        source = backbone
    elif file := _model_file(Path(backbone).expanduser()):
        source = "run"
        arguments["file"] = file
    else:
        source = "transformers"
        arguments["name"] = backbone
    built = BACKBONES[source](**arguments)
    return built, {"source": source, **built.arguments}


def _model_file(path: Path) -> Path | None:
    """The file of a model of this library that a path names; None if there is none."""
    file = path / MODEL_FILE if path.is_dir() else path
    if not file.is_file():
        return None
    try:
        read_description(file)
    except (SafetensorError, KeyError, TypeError, ValueError):
        return None
    return file


class StandardizedTrunk(nn.Module):
    """The trunk of a network that gives every image mean 0 and standard deviation 1 first."""

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.trunk(standardize(images).to(images.dtype))
        return features


@register_backbone("run")
def run_backbone(
    pretrained: bool,
    file: Path | None = None,
    model: str = "",
    options: Options | None = None,
) -> Backbone:
    """The trunk of a network that this library has trained, such as a ResNet-20.

    Args:
        pretrained: read the weights of `file`; else build one of this name and these options.
        file: of the network.
        model: name of the network.
        options: that it is built with, sizes among them.
    """
    arguments: Arguments = {"model": model, "options": dict(options or {})}
    if pretrained and file is not None:
        description = read_description(file)
        options = described_sizes(description) | description["options"]
        arguments = {"model": description["model"], "options": options}
    elif not model:
        raise ArgumentError("backbone", "expected the folder or file of a model, got 'run'")

    network: Any = create_model(arguments["model"], **arguments["options"])
    trunk = getattr(network, "trunk", None)
    if trunk is None:
        raise ArgumentError(
            "backbone",
            f"expected a network with a trunk, such as resnet20, got {arguments['model']}",
        )
    if pretrained and file is not None:
        network.load_state_dict(load_file(file))
    if network.standardized:
        trunk = StandardizedTrunk(trunk)
    channels = network.in_chans
    return Backbone(trunk, (0.0,) * channels, (1.0,) * channels, arguments)


@register_backbone("resnet20")
def resnet20_backbone(pretrained: bool) -> Backbone:  # noqa: ARG001 (there are no weights)
    """The trunk of ResNet-20 with new weights: `[batch, 64, height / 4, width / 4]`."""
    network: Any = create_model("resnet20")
    return Backbone(network.trunk, (0.0,) * 3, (1.0,) * 3, is_pretrained=False)


@register_backbone("transformers")
def transformers_backbone(
    pretrained: bool,
    name: str = "",
    config: Options | None = None,
    mean: Channels = IMAGENET_MEAN,
    std: Channels = IMAGENET_STD,
    is_pretrained: bool = True,
) -> Backbone:
    """A vision model of transformers, as a backbone where it has that form.

    Args:
        pretrained: read the weights; else build one of `config`, `mean` and `std`.
        name: a folder, or a name of the hub.
        config: of the model, with its "model_type".
        mean: of the channels of its images.
        std: of the channels of its images.
        is_pretrained: whether the weights that belong to `config` were trained before.
    """
    try:
        import transformers
    except ImportError as error:
        raise ArgumentError(
            "backbone",
            f"{name or 'it'} is no registered one ({', '.join(BACKBONES.names())}) and no run, and "
            "models of transformers need it: pip install 'torchcaps[backbones]'",
        ) from error
    if not pretrained or not name:
        settings = dict(config or {})
        kind = transformers.AutoConfig.for_model(settings.pop("model_type", ""), **settings)
        module = transformers_class(kind)(kind)
        return _with_arguments(Backbone(module, tuple(mean), tuple(std), {}, is_pretrained), kind)

    folder = Path(name).expanduser()
    is_local = folder.is_dir()
    place = str(folder) if is_local else name
    try:
        kind = transformers.AutoConfig.from_pretrained(place, local_files_only=is_local)
        module = transformers_class(kind).from_pretrained(
            place, local_files_only=is_local, dtype="float32"
        )
        mean, std = _read_normalization(place, is_local)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ArgumentError(
            "backbone",
            f"{name} is no registered one ({', '.join(BACKBONES.names())}), no run, and cannot be "
            f"read as a model of transformers ({one_line(str(error))})",
        ) from error
    return _with_arguments(Backbone(module, mean, std), kind)


def transformers_class(config: Any) -> Any:
    """The class of the backbone of a configuration of transformers, or of its plain model.

    `AutoBackbone.from_pretrained` refuses folders in transformers 5.23.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_BACKBONE_MAPPING, MODEL_MAPPING

    for mapping in (MODEL_FOR_BACKBONE_MAPPING, MODEL_MAPPING):
        if type(config) in mapping:
            return mapping[type(config)]
    raise ValueError(f"no model is known for a configuration {type(config).__name__}")


def transformers_recipe(backbone: Backbone) -> Arguments | None:
    """What builds a module of transformers again; None for another module."""
    kind = type(backbone.module)
    config = getattr(backbone.module, "config", None)
    has_config = config is not None and kind.__module__.startswith("transformers.")
    if not has_config or transformers_class(config) is not kind:
        return None
    return {"source": "transformers", **_with_arguments(backbone, config).arguments}


def _with_arguments(backbone: Backbone, config: Any) -> Backbone:
    """A backbone of transformers with the arguments that build it again."""
    return replace(
        backbone,
        arguments={
            "config": json.loads(config.to_json_string(use_diff=False)),
            "mean": list(backbone.mean),
            "std": list(backbone.std),
            "is_pretrained": backbone.is_pretrained,
        },
    )


def _read_normalization(place: str, is_local: bool) -> tuple[Channels, Channels]:
    """Mean and standard deviation of the images of a model; ImageNet's where it has none."""
    from transformers.utils import cached_file

    file = cached_file(
        place,
        "preprocessor_config.json",
        local_files_only=is_local,
        _raise_exceptions_for_missing_entries=False,
    )
    if file is None:
        return IMAGENET_MEAN, IMAGENET_STD
    settings = json.loads(Path(file).read_text(encoding="utf-8"))
    return (
        tuple(map(float, settings.get("image_mean") or IMAGENET_MEAN)),
        tuple(map(float, settings.get("image_std") or IMAGENET_STD)),
    )

"""The networks that are measured: a model of the library, put before the work as `torchcaps train` puts it; and the
whole network of 2017 as tutorials write it, to hold a training step of this library against."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from torchcaps.bench.baselines import TextbookCapsules, iterations_of
from torchcaps.data import ImageBatch
from torchcaps.errors import ArgumentError
from torchcaps.evaluation.forward import autocast
from torchcaps.models import create_model
from torchcaps.nn import CapsuleLinear
from torchcaps.settings import ModelSettings, TrainConfig
from torchcaps.tasks import Task, create_task
from torchcaps.types import Capsules, spec_of

CPU = torch.device("cpu")
COPIED = ("conv.weight", "conv.bias", "primary.conv.weight", "primary.conv.bias")
SIZE, STRIDE = (
    (28, 28),
    2,
)  # of the textbook network's images; of the convolution that makes capsules


@dataclass(frozen=True)
class Workload:
    """A model by name with its options, and how many images it gets at once."""

    model: str = ModelSettings.name
    options: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 128

    def build(self) -> nn.Module:
        """The model, the same weights each time; its convolutions in channels-last memory."""
        model = create_model(self.model, generator=torch.Generator().manual_seed(0), **self.options)
        convert_conv2d_weight_memory_format(model, torch.channels_last)
        return model

    def data(self, model: Any) -> tuple[Tensor, Tensor]:
        """Images `[batch, channels, height, width]` in [0, 1], channels-last in memory, and labels `[batch]` (of a
        model of pixels those of each pixel)."""
        generator = torch.Generator().manual_seed(1)
        images = torch.rand(self.batch, *image_shape(model), generator=generator)
        places = model.img_size if spec_of(model).is_dense else ()
        labels = torch.randint(model.num_classes, (self.batch, *places), generator=generator)
        return images.contiguous(memory_format=torch.channels_last), labels


def image_shape(model: Any) -> tuple[int, int, int]:
    """(channels, height, width) of a model's images. Raises TypeError for a module that does not say so, as the
    library's models do."""
    try:
        return model.in_chans, *model.img_size
    except AttributeError:
        raise TypeError(
            f"model: expected a model of create_model(), got {type(model).__name__}"
        ) from None


def task_of(model: nn.Module) -> Task:
    """What the model is trained for; with reconstruction where it has a decoder."""
    return create_task(model, TrainConfig())


def training_step(
    model: nn.Module, images: Tensor, labels: Tensor, precision: str
) -> Callable[[], None]:
    """A function that makes one training step of the model, in place: the loss of its task, then fused Adam. Images
    `[batch, channels, height, width]` are in [0, 1] on the CPU; "bf16" is autocast."""
    task = task_of(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    return _step(
        optimizer, lambda: task(ImageBatch(images, labels, masks=labels), 0.0)["loss"], precision
    )


def _step(
    optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor], precision: str
) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with autocast(CPU, precision):
            value = loss()
        value.backward()
        optimizer.step()

    return step


def answer_of(model: nn.Module, images: Tensor, precision: str) -> Callable[[], object]:
    """A function that makes one forward pass without gradients; precision as for `training_step`."""

    def answer() -> object:
        with torch.inference_mode(), autocast(CPU, precision):
            return model(images)

    return answer


def routed_layer(model: nn.Module) -> tuple[str, CapsuleLinear]:
    """Name and module of a model's last capsule layer, the one that the variants take the place of. Raises ValueError
    if it has none, or one whose routing the variants do not compute."""
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, CapsuleLinear)
    ]
    if not layers:
        raise ArgumentError(
            "model", f"expected one with a CapsuleLinear, got {type(model).__name__}"
        )
    iterations_of(layers[-1][1])
    return layers[-1]


class TextbookNetwork(nn.Module):
    """Eight convolutions stacked to primary capsules, routing with logits as large as the votes, a linear decoder.

    Contiguous memory throughout. It holds the weights of the library's `capsnet`, in the order that its own code needs,
    and computes the same. Raises TypeError for a model without the weights of that network and its decoder.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        if not replicable(model):
            raise TypeError(f"model: expected a capsnet with a decoder, got {type(model).__name__}")
        weight, bias, primary, primary_bias = map(model.get_parameter, COPIED)
        layer = routed_layer(model)[1]
        dim, self.num_classes = layer.in_dim, layer.out_capsules
        types = len(primary) // dim
        self.conv1 = _convolution(weight, bias, stride=1)
        weights, biases = (each.unflatten(0, (types, dim)) for each in (primary, primary_bias))
        self.capsules = nn.ModuleList(
            _convolution(weights[:, d], biases[:, d], STRIDE) for d in range(dim)
        )
        self.digits = TextbookCapsules(layer)
        # Children type by type here; position by position there.
        by_type = self.digits.route_weights.unflatten(1, (-1, types)).transpose(1, 2).flatten(1, 2)
        self.digits.route_weights = nn.Parameter(by_type.detach().contiguous())
        self.decoder = deepcopy(nn.Sequential(*model.get_submodule("decoder.layers").children()))

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Lengths `[batch, classes]`, and reconstructions `[batch, pixels]` of the labeled capsules."""
        x = torch.relu(self.conv1(images))
        u = torch.cat([capsule(x).view(x.size(0), -1, 1) for capsule in self.capsules], dim=-1)
        u = TextbookCapsules.squash(u)
        poses = self.digits(Capsules(u, u)).pose
        classes = (poses**2).sum(dim=-1) ** 0.5
        one_hot = torch.eye(self.num_classes)[labels]
        return classes, self.decoder((poses * one_hot[:, :, None]).reshape(x.size(0), -1))


def textbook_loss(images: Tensor, labels: Tensor, classes: Tensor, drawn: Tensor) -> Tensor:
    """Margin loss plus 0.0005 times the sum of squared errors, per image."""
    one_hot = torch.eye(classes.size(1))[labels]
    left, right = torch.relu(0.9 - classes) ** 2, torch.relu(classes - 0.1) ** 2
    margin = (one_hot * left + 0.5 * (1.0 - one_hot) * right).sum()
    error = ((drawn - images.view(images.size(0), -1)) ** 2).sum()
    return (margin + 0.0005 * error) / images.size(0)


def textbook_step(
    model: nn.Module, images: Tensor, labels: Tensor, precision: str
) -> Callable[[], None]:
    """A function that runs one training step of the textbook network, with plain Adam."""
    network, images = (
        TextbookNetwork(model),
        images.contiguous(memory_format=torch.contiguous_format),
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    return _step(
        optimizer, lambda: textbook_loss(images, labels, *network(images, labels)), precision
    )


def replicable(model: nn.Module) -> bool:
    """Whether `TextbookNetwork` can take the place of this model."""
    known = {name for name, _ in model.named_parameters()}
    return spec_of(model).decoder and known >= set(COPIED) and image_shape(model)[1:] == SIZE


def _convolution(weight: Tensor, bias: Tensor, stride: int) -> nn.Conv2d:
    convolution = nn.Conv2d(
        weight.shape[1], weight.shape[0], (weight.shape[2], weight.shape[3]), stride
    )
    convolution.load_state_dict({"weight": weight, "bias": bias})
    return convolution

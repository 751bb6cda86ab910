"""A trained model and its test images, as the explorer shows them. Nothing of the web is here.

Pictures are bytes `[channels, height, width]`. They are read from a file, moved, and laid over one
another.

Sara Sabour, Nicholas Frosst, Geoffrey Hinton, "Dynamic Routing Between Capsules", NIPS 2017,
arXiv 1710.09829: sections 4.1 (reconstruction), 5.1 (what the dimensions of a capsule represent)
and 6 (overlapping digits).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from torchcaps.data import Dataset, Preprocess, decode_image, multi_hot
from torchcaps.data.images import opened
from torchcaps.errors import (
    ArgumentError,
    DataError,
    RunError,
    check_known,
    check_range,
    check_shape,
)
from torchcaps.evaluation import transform_images
from torchcaps.evaluation.forward import activations_of, device_of, evaluating
from torchcaps.evaluation.routing.layers import swapped_routers
from torchcaps.models.notebook import parameter_count
from torchcaps.nn import RoutedLayer, Router
from torchcaps.reporting import open_task
from torchcaps.reporting.prediction import load_model
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task, create_task
from torchcaps.tasks.masks import overlays
from torchcaps.types import Capsules, model_metadata

MAX_PIXELS = 16_000_000  # of an image file
AXES = ("channels", "height", "width")
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")

Picture = UInt8[Tensor, "channels height width"]


@dataclass(frozen=True)
class Motion:
    """A change of an image about its center: resized, then turned, then moved.

    Attributes:
        degrees: of the rotation, clockwise.
        scale: factor of its size.
        right: pixels by which it is moved to the right.
        down: pixels by which it is moved down.
        changing: name of the amount that a sweep changes.
        LIMITS: range of each amount.

    Raises:
        ValueError: for an amount out of range, or another name.
    """

    degrees: float = 0.0
    scale: float = 1.0
    right: float = 0.0
    down: float = 0.0
    changing: str = "degrees"
    LIMITS: ClassVar = {
        "degrees": (-180, 180),
        "scale": (0.25, 4),
        "right": (-512, 512),
        "down": (-512, 512),
    }

    def __post_init__(self) -> None:
        for name, (low, high) in self.LIMITS.items():
            check_range(name, getattr(self, name), low=float(low), high=float(high))
        check_known("motion", self.changing, self.LIMITS)

    def at(self, value: float) -> Self:
        """The same motion with another amount of what changes."""
        return replace(self, **cast(Any, {self.changing: value}))


def read_picture(file: bytes, preprocess: Preprocess) -> Picture:
    """Decode an image file for a model; gray, in every channel, unless the model takes 1 or 3.

    Args:
        file: its bytes.
        preprocess: of the model.

    Raises:
        DataError: for what is no image of the kinds in `FORMATS`, or has more than `MAX_PIXELS`.
    """
    with opened(file, "image") as image:  # its header alone: nothing is decoded yet
        if image.format not in FORMATS:
            raise DataError(f"expected {', '.join(FORMATS)}, got {image.format}")
        if image.width * image.height > MAX_PIXELS:
            size = f"{image.width} × {image.height}"
            raise DataError(f"expected at most {MAX_PIXELS:,} pixels, got {size}")
    channels = preprocess.in_chans
    file_channels = channels if channels in (1, 3) else 1
    pixels = decode_image(file, preprocess.img_size, file_channels, name="image")
    return preprocess.finish(pixels.expand(channels, -1, -1).unsqueeze(0))[0].contiguous()


def move(image: Picture, motion: Motion | None) -> Picture:
    """The image after this motion; black comes in from outside."""
    if motion is None:
        return image
    pixels = transform_images(
        image.unsqueeze(0).float(),
        rotation=motion.degrees,
        scale=100 * motion.scale,
        shift=(motion.right, motion.down),
    )
    return pixels[0].round().clamp(0, 255).to(image.dtype)


def overlay(first: Picture, second: Picture, right: float = 0, down: float = 0) -> Picture:
    """The sum of two images, at most white.

    Args:
        first: an image.
        second: another one, of the same shape.
        right: pixels by which the second is moved to the right.
        down: pixels by which the second is moved down.

    Raises:
        ValueError: for images of unequal shapes, or a move that is too large.
    """
    sizes = dict(zip(AXES, first.shape, strict=True))
    check_shape("second", second, AXES, **sizes)
    second = move(second, Motion(right=right, down=down))
    brightness = first.int() + second.int()
    return brightness.clamp(max=255).to(torch.uint8)


class Session:
    """A trained model, and images to show it.

    Classes of a model without capsules count as capsules. Wrong arguments raise ValueError.

    Args:
        model: as `torchcaps.load` returns it, with `.classes` and `.preprocess`; or the task around
            one, by default the one that it is made for.
        name: what to call it on the page.
        examples: images of the model's size and classes to choose from.
        note: why there are none.

    Attributes:
        shape: (channels, height, width) of the images that the model takes.
        blank: a black picture.
        has_poses: whether there are capsules with poses for the whole picture.
        has_decoder: whether capsules can be drawn.
        has_routing: whether there is routing that uniform couplings can replace.
        names: of the capsules: the classes, or "capsule 1", "capsule 2", ... where there is not
            one for each class.
        pose_dim: 0 without poses.
        has_labels: whether labels of examples are indices of `names`.
    """

    MAX_DECODED: ClassVar = 64  # capsules in one call

    def __init__(
        self,
        model: nn.Module,
        name: str,
        examples: Dataset | None = None,
        note: str = "",
    ) -> None:
        task = model if isinstance(model, Task) else create_task(model, TrainConfig(), examples)
        self.task = task
        self.spec = task.spec
        self.model = cast(Any, task.model)
        metadata = model_metadata(self.model)
        classes = metadata.classes
        self.preprocess = metadata.preprocess
        if not isinstance(self.preprocess, Preprocess):
            problem = "expected .classes and .preprocess, as torchcaps.load gives them"
            raise ArgumentError("model", problem)
        if not self.preprocess.is_picture:
            kind = self.preprocess.kind
            raise ArgumentError(name, f"the explorer shows pictures, and this model takes {kind}")
        self.name = name
        self.examples = examples
        self.note = note
        self.shape = (self.preprocess.in_chans, *self.preprocess.model_size)
        self.blank = torch.zeros(self.shape, dtype=torch.uint8)
        self.has_poses = self.spec.pose and not self.spec.is_dense
        self.has_decoder = self.has_poses and self.spec.decoder and "decode" in task.capabilities
        self.has_routing = "routing" in task.capabilities and any(
            isinstance(module, RoutedLayer) for module in self.model.modules()
        )

        # The first pass compiles what is compiled, so that nobody at the page waits for it.
        activation, pose = self.encode([self.blank])
        numbered = tuple(f"capsule {k + 1}" for k in range(activation.shape[1]))
        self.names = classes if len(classes) == len(numbered) else numbered
        self.pose_dim = pose.shape[-1] if self.has_poses and pose is not None else 0
        self.has_labels = task.labeled and 0 < len(classes) == len(numbered)

    def describe(self) -> dict[str, Any]:
        """What the page needs to know of the model, ready for JSON."""
        examples = self.examples
        spec = self.spec
        # An activation is the length of a pose, a number of its own, or a probability.
        kind = "activation" if spec.is_dense or (spec.pose and not spec.logits) else "probability"
        if spec.activation == "length" and not spec.is_dense:
            kind = "length"
        several = 1
        if examples is not None and self.has_labels and "labels" in examples.targets:
            several = int(examples.labels.sum(dim=1).max())
        return {
            "name": self.name,
            "title": type(self.model).__name__,
            "classes": list(self.names),
            **dict(zip(AXES, self.shape, strict=True)),
            "parameters": parameter_count(self.model),
            "task": self.task.name,
            "labeled": self.has_labels,
            "dense": spec.is_dense,
            "routed": self.has_routing,
            "activation": kind,
            "several": several,
            "data": "" if examples is None else examples.name,
            "note": self.note,
        }

    def example(self, index: int) -> tuple[Picture, tuple[int, ...]]:
        """An image to show the model, and its classes.

        Args:
            index: of the image among the examples.

        Returns:
            The image and its labels; none where labels have no part in the task.

        Raises:
            ValueError: for no examples, or an index out of range.
        """
        if self.examples is None:
            raise ArgumentError("examples", "there are none here")
        check_range("index", index, low=0, high=len(self.examples) - 1)
        image = self.examples.float_images([index])[0]
        image = image.mul(255).round_().to(torch.uint8)
        if not self.has_labels:
            return image.cpu(), ()
        [labels] = multi_hot(self.examples.labels[[index]], len(self.names))
        return image.cpu(), tuple(labels.nonzero().flatten().tolist())

    def examples_of(self, label: int) -> Int64[Tensor, " n"]:
        """Indices of the examples of a class."""
        self.check_class(label)
        if self.examples is None or not self.has_labels:
            raise ArgumentError("examples", "there are none here that have labels")
        labels = multi_hot(self.examples.labels.cpu(), len(self.names))
        return labels[:, label].nonzero().squeeze(1)

    def encode(
        self, images: Sequence[Picture], *, uniform: bool = False
    ) -> tuple[Float[Tensor, "n capsules"], Tensor | None]:
        """Activations and poses; of a model of pixels, the share of each class, and what it found.

        Args:
            images: of the session's shape.
            uniform: give every class the same share of every child.

        Returns:
            Activations `[n, capsules]`; and poses `[n, capsules, dim]`, or None without capsules. Of
            a model of pixels, in their place what it found over each picture, `[n, channels,
            height, width]`.
        """
        pixels = self.batch(images)
        with evaluating(self.model), self.routed(uniform):
            if self.spec.is_dense:
                return overlays(self.task, pixels)
            if self.spec.pose:
                pose, activation = self.model.capsules(pixels)
                return activation.float().cpu(), pose.float().cpu()
            if "classes" in self.task.capabilities:
                return activations_of(self.model, pixels, self.spec).cpu(), None
        return torch.zeros(len(images), 0), None

    def draw(
        self,
        pose: Float[Tensor, "n capsules dim"],
        activation: Float[Tensor, "n capsules"],
        labels: Sequence[int],
    ) -> Float[Tensor, "n channels height width"]:
        """What the decoder makes of one capsule of each row.

        Args:
            pose: of all capsules.
            activation: of all capsules.
            labels: which capsule of each row is drawn.
        """
        device = device_of(self.model)
        with evaluating(self.model):
            capsules = Capsules(pose.to(device), activation.to(device))
            drawings: Tensor = self.model.reconstruct(capsules, torch.tensor(labels, device=device))
        return drawings.float().cpu()

    def batch(self, images: Sequence[Picture]) -> Float[Tensor, "n channels height width"]:
        """Images in [0, 1] on the model's device."""
        for image in images:
            check_shape("image", image, AXES, **dict(zip(AXES, self.shape, strict=True)))
        return (torch.stack(list(images)).float() / 255).to(device_of(self.model))

    def routed(self, uniform: bool) -> AbstractContextManager[object]:
        """A block in which the model routes as trained, or with uniform couplings."""
        if not uniform:
            return nullcontext()
        if not self.has_routing:
            raise ArgumentError("uniform", "this model has no routing to take out")
        return swapped_routers(self.model, Router.uniform)

    def check_class(self, *labels: int) -> None:
        """Raise ValueError unless these are capsules."""
        for label in labels:
            check_range("class", label, low=0, high=len(self.names) - 1)


def open_session(
    run: str | Path,
    *,
    data: str | None = None,
    root: str | None = None,
    device: str = "auto",
    name: str | None = None,
) -> Session:
    """A run, and its test images where they are at hand; a page without them still draws.

    Args:
        run: a run folder or a model file.
        data: another data set than the run's own.
        root: where a named set is looked for first.
        device: "auto", "cpu", "cuda", ...
        name: what to call it on the page, by default by its folder.

    Raises:
        RunError: for no run.
        DataError: for `data` that cannot be had.
    """
    name = name or Path(run).resolve().name
    try:
        task, images = open_task(run, data=data, root=root, device=device)
    except (DataError, RunError) as error:
        if data is not None:
            raise
        model = load_model(run, device)
        task = create_task(model, TrainConfig.of(task=model_metadata(model).task))
        return Session(task, name, note=f"No test images: {error}.")
    return Session(task, name, images)

"""What the page asks of a trained model: one image at a time, arrays in, arrays out. Nothing of the web is here.

Sara Sabour, Nicholas Frosst, Geoffrey Hinton, "Dynamic Routing Between Capsules", NIPS 2017, arXiv 1710.09829: sections
4.1 (reconstruction), 5.1 (what the dimensions of a capsule represent) and 6 (overlapping digits).
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self, cast, get_args

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor, nn

from torchcaps.data import ImageSet, decode_image
from torchcaps.data.images import opened
from torchcaps.data.pixels import fit_images
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
from torchcaps.explorer.routing import RoutingSteps, can_step, routing_steps
from torchcaps.models.cnn import parameter_count
from torchcaps.nn import RoutedLayer, Router
from torchcaps.reporting import open_run
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task, create_task
from torchcaps.training import load
from torchcaps.training.optim import resolve_device
from torchcaps.types import Capsules

MOST_PIXELS = 16_000_000  # of an image file
MOST_DECODED = 64  # poses in one call
MOST_SWEPT = 41  # inputs in one call
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")

Routing = Literal["trained", "uniform"]
Picture = UInt8[Tensor, "channels height width"]


class Look(NamedTuple):
    """What a model makes of one image. Classes of a model without capsules count as capsules."""

    activation: Float[Tensor, " capsules"]  # empty where the task has neither capsules nor classes
    pose: Float[Tensor, "capsules dim"] | None  # None for a model without capsules
    reconstructions: (
        Float[Tensor, "shown channels height width"] | None
    )  # in [0, 1]; None without a decoder
    shown: tuple[
        int, ...
    ]  # capsules drawn: as asked for, or those with the largest activations, the largest first


class Sweep(NamedTuple):
    """Activations, and the poses of one capsule (None for a model without capsules), while the input changes."""

    activation: Float[Tensor, "steps capsules"]
    pose: Float[Tensor, "steps dim"] | None


@dataclass(frozen=True)
class Motion:
    """A change of an image about its center: resized, then turned clockwise, then moved by pixels.

    `LIMITS` has the range of each amount, and `changing` names the one that a sweep changes. ValueError for others.
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
        """The same with another amount of what changes."""
        return replace(self, **cast(Any, {self.changing: value}))


class Session:
    """A trained model, and images to show it.

    It answers what the task offers and the model declares that it has. Classes of a model without capsules count as
    capsules. Arguments that do not fit, and what is not offered, raise ValueError.

    The model is as `torchcaps.load` returns it, with `.classes` and `.preprocess`; or the task around one, by default
    the one that it is made for. `name` is what to call it on the page; `examples` are images of the model's size and
    classes to choose from, and `note` says why there are none.

    `names` are those of the capsules: the classes, or "capsule 1", "capsule 2", ... where there is not one for each
    class. `pose_dim` is 0 without poses. With `has_labels`, labels of examples are indices of `names`. `decodes`,
    `routes`, `steps` and `sweeps` say what is offered: drawings, uniform couplings, routing step by step, sweeps.
    """

    def __init__(
        self, model: nn.Module, name: str, examples: ImageSet | None = None, note: str = ""
    ) -> None:
        self.task = task = (
            model if isinstance(model, Task) else create_task(model, TrainConfig(), examples)
        )
        self.model = cast(Any, task.model)
        try:
            classes, self.preprocess = tuple[str, ...](self.model.classes), self.model.preprocess
        except AttributeError:
            raise ArgumentError(
                "model", "expected .classes and .preprocess, as torchcaps.load gives them"
            ) from None
        if not self.preprocess.is_picture:
            raise ArgumentError(
                name, f"the explorer shows pictures, and this model takes {self.preprocess.kind}"
            )
        self.spec, self.name, self.examples, self.note = task.spec, name, examples, note
        # The first pass compiles what is compiled, so that the person at the page does not wait for it.
        blank = torch.zeros(self.shape, dtype=torch.uint8)
        activation, pose = self._encoded([blank], "trained")
        numbered = tuple(f"capsule {k + 1}" for k in range(activation.shape[1]))
        self.names = classes if len(classes) == len(numbered) else numbered
        self.pose_dim = 0 if pose is None else pose.shape[-1]
        self.has_labels = task.labeled and 0 < len(classes) == len(numbered)
        self.decodes = pose is not None and self.spec.decoder and "decode" in task.capabilities
        self.routes = "routing" in task.capabilities and any(
            isinstance(one, RoutedLayer) for one in self.model.modules()
        )
        self.steps = self.routes and can_step(self.model)
        self.sweeps = "sweep" in task.capabilities and bool(self.names)
        if self.steps:
            self.routing(blank, 0)
            self.look(blank, routing="uniform")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of the images that the model takes."""
        return (self.preprocess.in_chans, *self.preprocess.model_size)

    def describe(self) -> dict[str, Any]:
        """What the page needs to know of the model, ready for JSON."""
        channels, height, width = self.shape
        pixels, capsules = self.spec.is_dense, self.spec.pose and not self.spec.is_dense
        meaning = "activation" if pixels or (capsules and not self.spec.logits) else "probability"
        meaning = "length" if self.spec.activation == "length" and not pixels else meaning
        labels = (
            torch.zeros(0) if self.examples is None or not self.has_labels else self.examples.labels
        )
        several, count = (
            1 if labels.dim() == 1 else labels.shape[1],
            0 if self.examples is None else len(self.examples),
        )
        return {
            "name": self.name,
            "title": type(self.model).__name__,
            "classes": list(self.names),
            "channels": channels,
            "height": height,
            "width": width,
            "parameters": parameter_count(self.model),
            "task": self.task.name,
            "offers": sorted(self.task.capabilities),
            "labeled": self.has_labels,
            "capsules": capsules,
            "pixels": pixels,
            "routes": self.routes,
            "steps": self.steps,
            "decoder": self.decodes,
            "activation": meaning,
            "dim": self.pose_dim,
            "several": several,
            "examples": count,
            "data": "" if self.examples is None else self.examples.name,
            "note": self.note,
        }

    def example(self, index: int) -> tuple[Picture, tuple[int, ...]]:
        """An image to show the model, and the classes that it shows; none where labels have no part in the task."""
        if self.examples is None:
            raise ArgumentError("examples", "there are none here")
        check_range("index", index, low=0, high=len(self.examples) - 1)
        image = self.examples.float_images([index])[0].mul(255).round_().to(torch.uint8)
        labels = self.examples.labels[index].reshape(-1).tolist() if self.has_labels else ()
        return image.cpu(), tuple(labels)

    def labeled(self, label: int) -> Int64[Tensor, " n"]:
        """Indices of the examples of a class."""
        self._check_class(label)
        if self.examples is None or not self.has_labels:
            raise ArgumentError("examples", "there are none here that have labels")
        labels = self.examples.labels.reshape(len(self.examples), -1).cpu()
        return torch.nonzero((labels == label).any(dim=1)).squeeze(1)

    def picture(self, file: bytes) -> Picture:
        """An image file as the model takes it; gray, and the same in every channel, unless the model takes 1 or 3.
        Raises DataError for what is no image of the kinds in `FORMATS`, or one of more than `MOST_PIXELS`."""
        with opened(file, "image") as image:  # its header alone: nothing is decoded yet
            if image.format not in FORMATS:
                raise DataError(f"expected {', '.join(FORMATS)}, got {image.format}")
            if image.width * image.height > MOST_PIXELS:
                raise DataError(
                    f"expected at most {MOST_PIXELS:,} pixels, got {image.width} × {image.height}"
                )
        channels = self.preprocess.in_chans
        pixels = decode_image(
            file, self.preprocess.img_size, channels if channels in (1, 3) else 1, name="image"
        )
        return self.preprocess.finish(pixels.expand(channels, -1, -1).unsqueeze(0))[0].contiguous()

    def fitted(self, image: Picture) -> Picture:
        """An image for another model, with this one's size and channels; DataError where these cannot be had."""
        channels, height, width = self.shape
        return fit_images(image.unsqueeze(0), (height, width), channels)[0]

    def look(
        self,
        image: Picture,
        classes: Sequence[int] = (),
        routing: Routing = "trained",
        *,
        count: int = 1,
    ) -> Look:
        """Activations and poses of the capsules for one image of this model's `shape`, and drawings of some of them.

        `classes` are the capsules to decode, each by itself; none are the `count` with the largest activations, at most
        as many as there are. `routing` "uniform" gives every class the same share of every child, at test time only.
        """
        return self.looks([image], [classes], routing, count=count)[0]

    def looks(
        self,
        images: Sequence[Picture],
        classes: Sequence[Sequence[int]],
        routing: Routing = "trained",
        *,
        count: int = 1,
    ) -> list[Look]:
        """The same for several images, each with its own capsules to decode, in one pass of the model."""
        for wanted in classes:
            check_range("classes", len(wanted), high=MOST_DECODED)
            self._check_class(*wanted)
        check_range("count", count, low=1, high=max(1, len(self.names)))
        if self.spec.is_dense:
            return [
                self._overlaid(image, wanted) for image, wanted in zip(images, classes, strict=True)
            ]
        activations, poses = self._encoded(images, routing)
        found = []
        alike = repeat(None, len(images)) if poses is None else poses
        for activation, pose, wanted in zip(activations, alike, classes, strict=True):
            shown = tuple(wanted) or tuple(
                activation.topk(min(count, len(activation))).indices.tolist()
            )
            drawn, n = None, len(shown)
            if pose is not None and self.decodes:
                drawn = self._drawn(pose.expand(n, -1, -1), activation.expand(n, -1), shown)
            found.append(Look(activation, pose, drawn, shown))
        return found

    def decode(
        self,
        poses: Float[Tensor, "n dim"],
        label: int,
        activations: Float[Tensor, " n"] | None = None,
    ) -> Float[Tensor, "n channels height width"]:
        """What the decoder draws of these poses of the capsule `label`, with all other capsules at zero.

        n is from 1 to `MOST_DECODED`. `activations` are of that capsule, by default one; where activations are lengths,
        they are those of `poses` in any case.
        """
        self._check_class(label)
        if not self.decodes:
            raise ArgumentError("decode", "this model has no decoder")
        check_shape("poses", poses, ("n", "dim"), dim=self.pose_dim)
        check_range("poses", len(poses), low=1, high=MOST_DECODED)
        given = torch.ones(len(poses)) if activations is None else activations
        given = poses.norm(dim=-1) if self.spec.activation == "length" else given
        own = torch.arange(len(self.names)) == label
        return self._drawn(
            own.unsqueeze(-1) * poses.unsqueeze(1), own * given.unsqueeze(1), (label,) * len(poses)
        )

    def routing(self, image: Picture, label: int, routing: Routing = "trained") -> RoutingSteps:
        """How the class capsules came about, and which places of the image voted for one of them."""
        self._check_class(label)
        if not self.steps:
            raise ArgumentError(
                "routing", "the votes for this model's classes cannot be shown step by step"
            )
        pixels = self._batch([image])
        with evaluating(self.model), self._routing(routing):
            return routing_steps(self.model, pixels, label)

    def sweep(
        self,
        image: Picture,
        motion: Motion,
        values: Sequence[float],
        label: int,
        routing: Routing = "trained",
    ) -> Sweep:
        """Activations, and the pose of the capsule `label`, while the input is turned, moved or resized.

        `values` are of what `motion.changing` names, one input each, at most `MOST_SWEPT`; all else stays as in
        `motion`. For `routing` see `look`.
        """
        if not self.sweeps:
            raise ArgumentError("sweep", f"the task {self.task.name} does not offer it")
        self._check_class(label)
        check_range("values", len(values), low=1, high=MOST_SWEPT)
        activation, pose = self._encoded(
            [move(image, motion.at(value)) for value in values], routing
        )
        return Sweep(activation, None if pose is None else pose[:, label])

    def _encoded(self, images: Sequence[Picture], routing: Routing) -> tuple[Tensor, Tensor | None]:
        pixels = self._batch(images)
        with evaluating(self.model), self._routing(routing):
            if self.spec.is_dense:
                return self.task.overlays(pixels)[0], None
            if self.spec.pose:
                pose, activation = self.model.capsules(pixels)
                return activation.float().cpu(), pose.float().cpu()
            if "classes" in self.task.capabilities:
                return activations_of(self.model, pixels).cpu(), None
        return torch.zeros(len(images), 0), None

    def _overlaid(self, image: Picture, wanted: Sequence[int]) -> Look:
        with evaluating(self.model):
            shares, drawn = self.task.overlays(self._batch([image]))
        return Look(shares[0], None, drawn, tuple(wanted[:1]) or (1 + int(shares[0, 1:].argmax()),))

    def _batch(self, images: Sequence[Picture]) -> Float[Tensor, "n channels height width"]:
        channels, height, width = self.shape
        for image in images:
            check_shape(
                "image",
                image,
                ("channels", "height", "width"),
                channels=channels,
                height=height,
                width=width,
            )
        return (torch.stack([*images]).float() / 255).to(device_of(self.model))

    def _drawn(self, pose: Tensor, activation: Tensor, shown: Sequence[int]) -> Tensor:
        place = device_of(self.model)
        with evaluating(self.model):
            capsules = Capsules(pose.to(place), activation.to(place))
            drawn: Tensor = self.model.reconstruct(capsules, torch.tensor(shown, device=place))
        return drawn.float().cpu()

    def _routing(self, routing: Routing) -> AbstractContextManager[object]:
        check_known("routing", routing, get_args(Routing))
        if routing == "trained":
            return nullcontext()
        if not self.routes:
            raise ArgumentError("routing", "this model has no routing to take out")
        return swapped_routers(self.model, Router.uniform)

    def _check_class(self, *labels: int) -> None:
        for label in labels:
            check_range("class", label, low=0, high=len(self.names) - 1)


def move(image: Picture, motion: Motion) -> Picture:
    """The image `[channels, height, width]` after this motion; what comes in from outside is black."""
    how = {"rotation": motion.degrees, "scale": 100 * motion.scale}
    moved = transform_images(image.unsqueeze(0).float(), **how, shift=(motion.right, motion.down))
    return moved[0].round().clamp(0, 255).to(image.dtype)


def overlay(first: Picture, second: Picture, right: float = 0, down: float = 0) -> Picture:
    """Two images as one: the sum of their light, at most white; the second moved by so many pixels. Raises ValueError
    for images of unequal shapes, or a move of more than a picture."""
    axes = ("channels", "height", "width")
    check_shape("second", second, axes, **dict(zip(axes, first.shape, strict=True)))
    moved = move(second, Motion(right=right, down=down))
    return (first.int() + moved.int()).clamp_(max=255).to(torch.uint8)


def open_session(
    run: str | Path,
    *,
    data: str | None = None,
    root: str | None = None,
    device: str = "auto",
    name: str | None = None,
) -> Session:
    """A run, and its test images where they are at hand; a page without them still draws.

    The run is a run folder or a model file, RunError if there is none; `data` another data set than its own, DataError
    if it cannot be had then; `root` where a named set is looked for first; `name` what to call it on the page, by
    default by its folder.
    """
    name = name or Path(run).resolve().name
    try:
        task, images = open_run(run, data=data, root=root, device=device)
    except (DataError, RunError) as error:
        if data is not None:
            raise
        model: Any = load(run, device=resolve_device(device))
        task = create_task(model, TrainConfig.of(task=model.task))
        return Session(task, name, note=f"No test images: {error}.")
    return Session(task, name, images)

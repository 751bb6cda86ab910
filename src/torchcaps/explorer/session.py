"""What the page asks of a trained model: one image at a time, arrays in, arrays out. Nothing of the web is here.

Sara Sabour, Nicholas Frosst, Geoffrey Hinton, "Dynamic Routing Between Capsules", NIPS 2017, arXiv 1710.09829: sections
4.1 (reconstruction), 5.1 (what the dimensions of a capsule represent) and 6 (overlapping digits).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from jaxtyping import Float, Int64, UInt8
from PIL import Image
from torch import Tensor, nn

from torchcaps.data import ImageSet, Preprocess, centre_crop, decode_image
from torchcaps.data.images import opened
from torchcaps.data.pixels import fit_images
from torchcaps.errors import DataError, RunError, UnknownNameError, check_range, check_shape
from torchcaps.evaluation.forward import device_of, evaluating
from torchcaps.evaluation.routing.layers import swapped_routers
from torchcaps.explorer.routing import RoutingSteps, can_step, routing_steps
from torchcaps.explorer.transform import Motion, move
from torchcaps.nn import RoutedLayer, Router
from torchcaps.report import open_run
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
    """What a model makes of one image.

    Attributes:
        activation: of the classes, `[classes]` in [0, 1]: lengths of capsules, or a CNN's probabilities.
        pose: of the class capsules, `[classes, dim]`; None for a model without capsules.
        reconstructions: `[shown, channels, height, width]` in [0, 1], one for each class in `shown`; None without a
            decoder.
        shown: those classes: as asked for, or else those with the largest activations, the largest first.
    """

    activation: Float[Tensor, " classes"]
    pose: Float[Tensor, "classes dim"] | None
    reconstructions: Float[Tensor, "shown channels height width"] | None
    shown: tuple[int, ...]


class Sweep(NamedTuple):
    """One class capsule, while the input is turned, moved or resized.

    Attributes:
        values: `[steps]`, in degrees, pixels or as a factor.
        activation: `[steps, classes]` in [0, 1].
        pose: of the class asked for, `[steps, dim]`; None for a model without capsules.
    """

    values: Float[Tensor, " steps"]
    activation: Float[Tensor, "steps classes"]
    pose: Float[Tensor, "steps dim"] | None


class Session:
    """A trained model, and images to show it.

    Args:
        model: as `torchcaps.load` returns it, with `.classes` and `.preprocess`.
        name: what to call it on the page.
        examples: images of the model's size and classes to choose from; None where there are none.
        note: why there are no examples.

    Raises:
        ValueError: for a model without `.classes` and `.preprocess`.
    """

    def __init__(self, model: nn.Module, name: str, examples: ImageSet | None = None, note: str = "") -> None:
        if not (hasattr(model, "classes") and hasattr(model, "preprocess")):
            raise ValueError("model: expected .classes and .preprocess, as torchcaps.load gives them, got neither")
        self.model, self.name, self.examples, self.note = model, name, examples, note
        self.classes = cast(tuple[str, ...], model.classes)
        self.preprocess = cast(Preprocess, model.preprocess)
        self.routes = any(isinstance(module, RoutedLayer) for module in model.modules())
        self.decodes = getattr(model, "decoder", None) is not None
        # The first pass compiles what is compiled, so that the person at the page does not wait for it.
        blank = torch.zeros(self.shape, dtype=torch.uint8)
        found = self.look(blank)
        self.pose_dim = 0 if found.pose is None else found.pose.shape[-1]
        self.has_lengths = found.pose is not None and torch.allclose(
            found.pose.norm(dim=-1), found.activation, atol=1e-3
        )
        self.steps = can_step(model)
        if self.steps:
            self.routing(blank, 0)
            self.look(blank, routing="uniform")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of the images that the model takes."""
        return (self.preprocess.in_chans, *self.preprocess.model_size)

    @property
    def several(self) -> int:
        """How many classes an example shows: one, but for overlapping digits."""
        return 1 if self.examples is None or self.examples.labels.dim() == 1 else self.examples.labels.shape[1]

    def describe(self) -> dict[str, Any]:
        """What the page needs to know of the model, ready for JSON."""
        channels, height, width = self.shape
        return {
            "name": self.name, "title": type(self.model).__name__, "classes": list(self.classes), "channels": channels,
            "height": height, "width": width, "parameters": sum(p.numel() for p in self.model.parameters()),
            "capsules": self.routes, "lengths": self.has_lengths, "steps": self.steps, "decoder": self.decodes,
            "dim": self.pose_dim, "several": self.several,
            "examples": 0 if self.examples is None else len(self.examples),
            "data": "" if self.examples is None else self.examples.name, "note": self.note,
        }  # fmt: skip

    def example(self, index: int) -> tuple[Picture, tuple[int, ...]]:
        """An image to show the model, and the classes that it shows.

        Raises:
            ValueError: for an index outside the examples, or where there are none.
        """
        if self.examples is None:
            raise ValueError("examples: there are none here")
        check_range("index", index, low=0, high=len(self.examples) - 1)
        image = self.examples.float_images([index])[0].mul(255).round_().to(torch.uint8)
        return image.cpu(), tuple(self.examples.labels[index].reshape(-1).tolist())

    def labelled(self, label: int) -> Int64[Tensor, " n"]:
        """Indices of the examples of a class.

        Raises:
            ValueError: for a class that there is not, or where there are no examples.
        """
        self._check_class(label)
        if self.examples is None:
            raise ValueError("examples: there are none here")
        labels = self.examples.labels.reshape(len(self.examples), -1).cpu()
        return torch.nonzero((labels == label).any(dim=1)).squeeze(1)

    def picture(self, file: bytes) -> Picture:
        """An image file as the model takes it; grey, and the same in every channel, unless the model takes 1 or 3.

        Raises:
            DataError: for what is no image of the kinds in `FORMATS`, or one of more than `MOST_PIXELS`.
        """
        with opened(file, "image") as image:
            _check_file(image)
        channels = self.preprocess.in_chans
        pixels = decode_image(file, self.preprocess.img_size, channels if channels in (1, 3) else 1, name="image")
        pixels = pixels.expand(channels, -1, -1)
        crop = self.preprocess.crop
        return (pixels if crop is None else centre_crop(pixels.unsqueeze(0), crop)[0]).contiguous()

    def fitted(self, image: Picture) -> Picture:
        """An image for another model, with the size and channels that this one takes.

        Raises:
            DataError: where channels cannot be turned into this model's.
        """
        channels, height, width = self.shape
        return fit_images(image.unsqueeze(0), (height, width), channels)[0]

    def look(
        self, image: Picture, classes: Sequence[int] = (), routing: Routing = "trained", *, count: int = 1
    ) -> Look:
        """Activations and poses of the classes, and what the decoder draws of some of them.

        Args:
            image: of this model's `shape`.
            classes: which to decode, each by itself; none are the `count` with the largest activations.
            routing: "uniform" gives every class the same share of every child, at test time only.
            count: how many, at most as many as there are classes.

        Raises:
            ValueError: for another shape, a class that there is not, or a model that has no routing to take out.
        """
        return self.looks([image], [classes], routing, count=count)[0]

    def looks(
        self, images: Sequence[Picture], classes: Sequence[Sequence[int]], routing: Routing = "trained", *,
        count: int = 1,
    ) -> list[Look]:  # fmt: skip
        """The same for several images, each with its own classes to decode, in one pass of the model."""
        for wanted in classes:
            for label in wanted:
                self._check_class(label)
            check_range("classes", len(wanted), high=MOST_DECODED)
        check_range("count", count, low=1, high=len(self.classes))
        pixels = torch.cat([self._tensor(image) for image in images])
        with evaluating(self.model), self._routing(routing):
            if not self.routes:
                activations = self.model(pixels).float().cpu()
                poses: Iterable[Tensor | None] = repeat(None, len(images))
            else:
                capsules = self.model.capsules(pixels)  # type: ignore[operator]
                activations, poses = capsules.activation.float().cpu(), capsules.pose.float().cpu()
        found = []
        for activation, pose, wanted in zip(activations, poses, classes, strict=True):
            shown = tuple(wanted) or tuple(activation.topk(count).indices.tolist())
            decoded = pose is not None and self.decodes
            drawn = self._drawn(pose.expand(len(shown), -1, -1), shown) if decoded else None  # type: ignore[union-attr]
            found.append(Look(activation, pose, drawn, shown))
        return found

    def decode(self, poses: Float[Tensor, "n dim"], label: int) -> Float[Tensor, "n channels height width"]:
        """What the decoder draws of these poses of one class capsule, with all other capsules at zero.

        Args:
            poses: `[n, dim]`, n from 1 to `MOST_DECODED`.
            label: the class.

        Raises:
            ValueError: for a model without a decoder, or arguments that do not fit.
        """
        self._check_class(label)
        if not self.decodes:
            raise ValueError("decode: this model has no decoder")
        check_shape("poses", poses, ("n", "dim"), dim=self.pose_dim)
        check_range("poses", len(poses), low=1, high=MOST_DECODED)
        whole = torch.zeros(len(poses), len(self.classes), self.pose_dim)
        whole[:, label] = poses
        return self._drawn(whole, (label,) * len(poses))

    def routing(self, image: Picture, label: int, routing: Routing = "trained") -> RoutingSteps:
        """How the class capsules came about, and which places of the image voted for one of them.

        Raises:
            ValueError: for a model without routing, or arguments that do not fit.
        """
        self._check_class(label)
        if not self.steps:
            raise ValueError("routing: the votes for this model's classes cannot be told step by step")
        pixels = self._tensor(image)
        with evaluating(self.model), self._routing(routing):
            return routing_steps(self.model, pixels, label)

    def sweep(
        self, image: Picture, motion: Motion, values: Sequence[float], label: int, routing: Routing = "trained"
    ) -> Sweep:
        """Activations, and the pose of one class, while the input is turned, moved or resized.

        Args:
            image: of this model's `shape`.
            motion: what stays the same.
            values: at most `MOST_SWEPT`, one input each, of what `motion.changing` names.
            label: the class whose pose is followed.
            routing: see `look`.

        Raises:
            ValueError: for arguments that do not fit.
        """
        self._check_class(label)
        check_range("values", len(values), low=1, high=MOST_SWEPT)
        moved = torch.stack([move(image, motion.at(value)) for value in values])
        pixels = torch.cat([self._tensor(one) for one in moved])
        with evaluating(self.model), self._routing(routing):
            if not self.routes:
                return Sweep(torch.tensor(values), self.model(pixels).float().cpu(), None)
            pose, activation = self.model.capsules(pixels)  # type: ignore[operator]
            return Sweep(torch.tensor(values), activation.float().cpu(), pose[:, label].float().cpu())

    def _tensor(self, image: Picture) -> Float[Tensor, "1 channels height width"]:
        channels, height, width = self.shape
        check_shape("image", image, ("channels", "height", "width"), channels=channels, height=height, width=width)
        return (image.unsqueeze(0).float() / 255).to(device_of(self.model))

    def _drawn(self, pose: Tensor, shown: Sequence[int]) -> Float[Tensor, "n channels height width"]:
        place = device_of(self.model)
        capsules = Capsules(pose.to(place), pose.norm(dim=-1).to(place))
        with evaluating(self.model):
            return self.model.reconstruct(capsules, torch.tensor(shown, device=place)).float().cpu()  # type: ignore[operator]

    def _routing(self, routing: Routing) -> Any:
        if routing not in get_args(Routing):
            raise UnknownNameError("routing", routing, get_args(Routing))
        if routing == "trained":
            return nullcontext()
        if not self.routes:
            raise ValueError("routing: this model has no routing to take out")
        return swapped_routers(self.model, Router.uniform)

    def _check_class(self, label: int) -> None:
        check_range("class", label, low=0, high=len(self.classes) - 1)


def laid_over(first: Picture, second: Picture, right: float = 0, down: float = 0) -> Picture:
    """Two images as one: the sum of their light, at most white; the second moved by so many pixels.

    Raises:
        ValueError: for images of unequal shapes, or a move of more than a picture.
    """
    axes = ("channels", "height", "width")
    check_shape("first", first, axes)
    check_shape("second", second, axes, **dict(zip(axes, first.shape, strict=True)))
    moved = move(second, Motion(right=right, down=down))
    return (first.int() + moved.int()).clamp_(max=255).to(torch.uint8)


def _check_file(image: Image.Image) -> None:
    """Refuse by the header, before anything is decoded."""
    if image.format not in FORMATS:
        raise DataError(f"expected {', '.join(FORMATS)}, got {image.format}")
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise DataError(f"expected at most {MOST_PIXELS:,} pixels, got {width} × {height}")


def open_session(
    run: str | Path, *, data: str | None = None, root: str | None = None, device: str = "auto", name: str | None = None
) -> Session:
    """A run, and its test images where they are at hand; a page without them still draws.

    Args:
        run: a run folder, or a model file.
        data: another data set than the run's own, by name or path; it must be there then.
        root: where a named set is looked for first.
        device: "auto", "cpu", "cuda", ...
        name: what to call it on the page; by default by its folder.

    Raises:
        RunError: if there is no such run. DataError: if `data` is given and cannot be had.
    """
    name = name or Path(run).resolve().name
    try:
        model, images = open_run(run, data=data, root=root, device=device)
    except (DataError, RunError) as error:
        if data is not None:
            raise
        return Session(load(run, device=resolve_device(device)), name, note=f"No test images: {error}.")
    return Session(model, name, images)

"""The augmentations, random changes of training images, and all of those of a run in their order.

`register_augmentation` adds one. A run keeps the settings of all augmentations in one object, the
group "augmentation" (`TrainConfig.augmentation`), which has an attribute for each; `Augmentation`
finds its own settings there by their names.

A *switch* is a setting that turns its augmentation on, unless it is 0, False or None; another
setting, such as a threshold, is a *parameter*. A *mask* has a class for each pixel of an image; it
is changed as a stack of images, one channel for each class.
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor

from torchcaps import plugins
from torchcaps.data.dataset import Batch
from torchcaps.data.pixels import Images, random_crop
from torchcaps.errors import ArgumentError, check_shape
from torchcaps.registry import Registry

AXES = ("batch", "channels", "height", "width")
MOVED = ("mask", "singles")  # targets that have the places of an image
CROP_ORDER = 60.0  # `Augmentation.order` of the crop, which `Transforms` adds without registering
Change = Callable[[Images, Any, Generator], Images]
"""(images, settings, generator) -> the images changed, of the same shape and type.

The crop alone changes the shape.
"""


@dataclass(frozen=True)
class Augmentation:
    """A random change of images.

    Attributes:
        name: its name.
        apply: the function that changes images.
        settings: dataclass of its settings, whose instances `apply` takes; not used of one that is
            not registered.
        moves, order, parameters: see `register_augmentation`.
    """

    name: str
    apply: Change
    settings: type[Any]
    moves: Collection[str]
    order: float
    parameters: Collection[str] = ()

    @property
    def switches(self) -> list[str]:
        """Names of the settings that switch it on."""
        return [field.name for field in fields(self.settings) if field.name not in self.parameters]

    def configured(self, group: Any) -> Any | None:
        """Its own settings, out of those of all augmentations; None where they switch it off.

        Args:
            group: has the settings of all augmentations as attributes. One that it lacks has its
                default.
        """
        amounts = {
            field.name: getattr(group, field.name, field.default) for field in fields(self.settings)
        }
        return self.settings(**amounts) if any(map(amounts.get, self.switches)) else None

    def refuse(self, group: Any, reason: str) -> None:
        """Raise ArgumentError for the first of its switches that is on and not the default.

        A switch whose default is on says nothing of what the user asks for: it is not refused.

        Args:
            group: has the settings of all augmentations as attributes.
            reason: kind of data that the augmentation cannot change, such as "sets of points"; the
                last words of the message "expected 0 for ...".
        """
        for field in fields(self.settings):
            amount = getattr(group, field.name, field.default)
            if field.name in self.switches and amount and amount != field.default:
                raise ArgumentError(
                    field.name,
                    f"expected {False if amount is True else 0} for {reason}, got {amount}",
                )


AUGMENTATIONS: Registry[Augmentation] = Registry("augmentation")


def register_augmentation(
    name: str,
    settings: type[Any],
    *,
    moves: Collection[str],
    order: float = 50.0,
    parameters: Collection[str] = (),
    replace: bool = False,
) -> Callable[[Change], Change]:
    """Decorate a function that changes images at random, to make it a setting of every training.

    Args:
        name: name of the augmentation.
        settings: a dataclass whose fields are made by `torchcaps.groups.setting`. Each is a
            setting of the group "augmentation" and a flag of `torchcaps train`. The function is
            called if one of its switches is on, that is, not 0, False or None.
        moves: names of the targets that are changed as the image is: `MOVED`, "mask" (a channel
            for each class) and "singles" (the images that an image is composed of), for one that
            moves pixels; none for one that changes the values of the image alone. One that moves
            singles but no masks is never applied to images with masks: `Transforms` refuses the
            setting, and leaves it out where it is on by default.
        order: its place, the lowest first. The library has shift 10, flip 20, morphology 30, affine
            40, the crop 60, erase 70 and color_jitter 80; after the latter, values may leave [0, 1].
        parameters: settings that only modify the change, such as a threshold. They switch nothing
            on or off.
        replace: whether it may take the place of one with this name.

    Returns:
        The decorator, which returns the function as it is.

    Raises:
        ArgumentError: the name is taken, or `settings` has a field of another augmentation's, or
            one that is not made by `setting`.

    Example:
        >>> @dataclass(frozen=True)
        ... class NoiseSettings:
        ...     noise: float = setting(0.0, "standard deviation of the noise", low=0)
        >>> @register_augmentation("noise", NoiseSettings, moves=())
        ... def add_noise(images, settings, generator):
        ...     noise = torch.randn(images.shape, generator=generator)
        ...     return images + settings.noise * to_device(noise, images)
    """

    def register(function: Change) -> Change:
        for field in fields(settings):
            if "about" not in field.metadata:  # `setting` stores its help there
                raise ArgumentError("settings", f"expected {field.name} to be made by `setting`")
            for rival in AUGMENTATIONS.registered():
                if field.name in rival.settings.__dataclass_fields__ and rival.name != name:
                    raise ArgumentError(
                        "settings", f"{field.name!r} is one of {rival.name}; expected another name"
                    )
        get_type_hints(settings)  # raises NameError here for a type that is not known
        augmentation = Augmentation(
            name, function, settings, tuple(moves), order, tuple(parameters)
        )
        AUGMENTATIONS.add(name, augmentation, replace=replace)
        return function

    return register


def ordered_augmentations() -> list[Augmentation]:
    """All augmentations, the first to be applied first; of equal order the one registered first."""
    plugins.load_entry_points()
    return sorted(AUGMENTATIONS.registered(), key=lambda augmentation: augmentation.order)


class Transforms:
    """The random changes of training images that a run's settings ask for, in their order.

    Args:
        settings: those of the group "augmentation" (`TrainConfig.augmentation`).
        crop: side of the window that is cut out at a random place; None keeps whole images.
        mask_classes: number of classes of the masks that are changed with their images; None
            without masks. An augmentation that masks cannot follow is left out if it is on by
            default.

    Raises:
        ArgumentError: a setting, other than the default, asks for one that masks cannot follow.

    Attributes:
        steps: each augmentation with its settings, in their order.
        is_checked: whether a batch has been looked at for numbers that are not finite. Only the
            first one is: on a GPU, each look waits for all work before it.
    """

    is_checked = False

    def __init__(
        self, settings: Any, crop: int | None = None, *, mask_classes: int | None = None
    ) -> None:
        self.mask_classes = mask_classes
        self.steps: list[tuple[Augmentation, Any]] = []
        if crop is not None:
            self.steps.append((Augmentation("crop", _crop, object, MOVED, CROP_ORDER), crop))
        for augmentation in ordered_augmentations():
            if mask_classes is not None and augmentation.moves and "mask" not in augmentation.moves:
                augmentation.refuse(settings, "images with masks, which would not fit")
            elif configured := augmentation.configured(settings):
                self.steps.append((augmentation, configured))
        self.steps.sort(key=lambda step: step[0].order)

    def __call__(self, batch: Batch, generator: Generator) -> Batch:
        """Change each input at random, and move with it those of its targets that follow.

        Args:
            batch: inputs `[batch, channels, height, width]` in [0, 1]. Of the targets, the pixels
                of "mask" `[batch, height, width]` and of "singles", the images that an input is
                composed of `[batch, k, channels, height, width]`, go where those of the input go.
                A pixel of a turned or resized mask is a mixture of several: it takes the class
                with the largest share. What comes from outside is background.
            generator: source of the random numbers.

        Returns:
            The batch, its inputs in the memory format channels_last, which is fastest for
            convolutions.

        Raises:
            ArgumentError: an augmentation, which it names, returns another shape or, for the first
                batch, a number that is not finite.
        """
        planes = {"inputs": batch.inputs}
        targets = dict(batch.targets)
        if self.steps and "mask" in targets and self.mask_classes is not None:
            planes["mask"] = one_hot_foreground(targets["mask"], self.mask_classes - 1)
        if self.steps and "singles" in targets:
            planes["singles"] = targets["singles"].flatten(1, 2)
        for augmentation, settings in self.steps:
            names = ["inputs", *(name for name in planes if name in augmentation.moves)]
            stack = [planes[name] for name in names]
            # What moves together is one tensor, so that it meets the same random numbers.
            pixels = stack[0] if len(stack) == 1 else torch.cat(stack, dim=1)
            changed = self._apply(augmentation, pixels, settings, generator)
            sizes = [part.shape[1] for part in stack]
            planes |= dict(zip(names, changed.split(sizes, dim=1), strict=True))
        self.is_checked = True
        if "mask" in planes:
            background = 1 - planes["mask"].sum(dim=1, keepdim=True)
            targets["mask"] = torch.cat([background, planes["mask"]], dim=1).argmax(dim=1)
        if "singles" in planes:
            singles = planes["singles"].unflatten(1, targets["singles"].shape[1:3])
            targets["singles"] = singles.contiguous()
        inputs = planes["inputs"].contiguous(memory_format=torch.channels_last)
        return batch._replace(inputs=inputs, targets=targets)

    def _apply(
        self, augmentation: Augmentation, images: Images, settings: Any, generator: Generator
    ) -> Images:
        """The images changed by an augmentation; ArgumentError where it returns something else."""
        changed = augmentation.apply(images, settings, generator)
        if not isinstance(changed, Tensor):
            raise ArgumentError(
                augmentation.name, f"expected it to return a tensor, got {type(changed).__name__}"
            )
        if augmentation.apply is not _crop:
            check_shape(
                augmentation.name, changed, AXES, **dict(zip(AXES, images.shape, strict=True))
            )
        if not self.is_checked and not changed.isfinite().all():
            raise ArgumentError(augmentation.name, "expected it to return finite numbers")
        return changed.to(images)

    def append(self, function: Callable[[Images, Generator], Images]) -> None:
        """Apply a function (images, generator) to inputs alone, after all augmentations.

        Args:
            function: of images and a generator; it returns as many images of the same size.
        """
        augmentation = Augmentation(
            "transform",
            lambda images, _, generator: function(images, generator),
            object,
            (),
            math.inf,
        )
        self.steps.append((augmentation, None))


def _crop(images: Images, side: int, generator: Generator) -> Images:
    """The crop as an `Augmentation.apply`, whose settings are the side of the window."""
    return random_crop(images, side, generator=generator)


def refuse_augmentations(settings: Any, reason: str) -> None:
    """Refuse augmentations in a run that changes no images, such as one of sets of points.

    Args:
        settings: those of the group "augmentation" (`TrainConfig.augmentation`).
        reason: kind of data of the run; the last words of the message "expected 0 for ...".

    Raises:
        ArgumentError: a setting is on and not the default.
    """
    for augmentation in ordered_augmentations():
        augmentation.refuse(settings, reason)


def one_hot_foreground(
    masks: Int64[Tensor, "batch height width"], num_foreground: int
) -> Float[Tensor, "batch classes height width"]:
    """1 where a pixel is of a class, else 0, for each class but the background."""
    class_indices = torch.arange(1, 1 + num_foreground, device=masks.device).view(-1, 1, 1)
    return (masks.unsqueeze(1) == class_indices).float()

"""The augmentations, random changes of training images, by name and in their order.

`register_augmentation` adds one. A run keeps the settings of all augmentations in one object, the
group "augmentation" (`TrainConfig.augmentation`), which has an attribute for each; `Augmentation`
finds its own settings there by their names.

A *switch* is a setting that turns its augmentation on, unless it is 0, False or None; another
setting, such as a threshold, is a *parameter*. A *mask* has a class for each pixel of an image; it
is changed as a stack of images, one channel for each class.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, get_type_hints

from torch import Generator

from torchcaps import plugins
from torchcaps.data.pixels import Images as Images
from torchcaps.errors import ArgumentError
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
        settings = {
            field.name: getattr(group, field.name, field.default) for field in fields(self.settings)
        }
        if any(settings[name] for name in self.switches):
            return self.settings(**settings)
        return None

    def refuse(self, group: Any, reason: str) -> None:
        """Raise ArgumentError for the first of its switches that is on and not the default.

        A switch whose default is on says nothing of what the user asks for: it is not refused.

        Args:
            group: has the settings of all augmentations as attributes.
            reason: kind of data that the augmentation cannot change, such as "sets of points"; the
                last words of the message "expected 0 for ...".
        """
        for field in fields(self.settings):
            if field.name in self.parameters:
                continue
            amount = getattr(group, field.name, field.default)
            if amount and amount != field.default:
                off = False if amount is True else 0
                raise ArgumentError(field.name, f"expected {off} for {reason}, got {amount}")


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
        ...     noise = torch.randn(images.shape, generator=generator, device=generator.device)
        ...     return images + settings.noise * noise.to(images)
    """

    def register(function: Change) -> Change:
        _check_settings(name, settings)
        augmentation = Augmentation(
            name, function, settings, tuple(moves), order, tuple(parameters)
        )
        AUGMENTATIONS.add(name, augmentation, replace=replace)
        return function

    return register


def _check_settings(name: str, settings: type[Any]) -> None:
    """Raise ArgumentError unless all fields are made by `setting` and belong to no other name."""
    for field in fields(settings):
        if "about" not in field.metadata:  # `setting` stores its help there
            raise ArgumentError("settings", f"expected {field.name} to be made by `setting`")
        for augmentation in AUGMENTATIONS.registered():
            is_taken = field.name in augmentation.settings.__dataclass_fields__
            if is_taken and augmentation.name != name:
                raise ArgumentError(
                    "settings",
                    f"{field.name!r} is one of {augmentation.name}; expected another name",
                )
    get_type_hints(settings)  # raises NameError here for a type that is not known


def ordered_augmentations() -> list[Augmentation]:
    """All augmentations, the first to be applied first; of equal order the one registered first."""
    plugins.load_entry_points()
    return sorted(AUGMENTATIONS.registered(), key=attrgetter("order"))

"""The augmentations by name, in the order in which they are applied."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from torch import Generator

from torchcaps.data.pixels import Images as Images
from torchcaps.errors import ArgumentError
from torchcaps.registry import Registry

AXES = ("batch", "channels", "height", "width")
CROP_ORDER = 60.0  # the place of the crop in the order of augmentations
Change = Callable[[Images, Any, Generator], Images]
"""(images, settings, generator) -> the images changed, of the same shape and type"""


@dataclass(frozen=True)
class Augmentation:
    """A random change of images, as `register_augmentation` describes it."""

    name: str
    apply: Change
    settings: type[Any]
    moves_pixels: bool
    fits_masks: bool
    order: float
    parameters: Collection[str] = ()

    @property
    def switches(self) -> list[str]:
        """Names of the settings that switch it on."""
        return [f.name for f in fields(self.settings) if f.name not in self.parameters]

    def configured(self, group: Any) -> Any | None:
        """Its own settings out of those of all augmentations; None where they switch it off."""
        values = {f.name: getattr(group, f.name, f.default) for f in fields(self.settings)}
        if any(values[name] for name in self.switches):
            return self.settings(**values)
        return None

    def refuse(self, group: Any, reason: str) -> None:
        """Raise ArgumentError for the first of its switches that is on and not the default."""
        for f in fields(self.settings):
            if f.name not in self.switches:
                continue
            value = getattr(group, f.name, f.default)
            if value and value != f.default:
                off = False if value is True else 0
                raise ArgumentError(f.name, f"expected {off} for {reason}, got {value}")


AUGMENTATIONS: Registry[Augmentation] = Registry("augmentation")


def register_augmentation(
    name: str,
    settings: type[Any],
    *,
    moves_pixels: bool,
    fits_masks: bool | None = None,
    order: float = 50.0,
    parameters: Collection[str] = (),
    replace: bool = False,
) -> Callable[[Change], Change]:
    """Decorate a function that changes images at random, to make it a setting of every training.

    Args:
        name: name of the augmentation.
        settings: a dataclass whose fields are made by `torchcaps.groups.setting`. Each is a
            setting of the group "augmentation" and a flag of `torchcaps train`. The function is
            called unless all that switch it are 0, False or None.
        moves_pixels: whether masks and single layers of an image are changed as the image is.
            Where it is False, the image alone is changed, and single layers that are targets of a
            reconstruction keep their values.
        fits_masks: whether masks, a channel for each class, may be changed so; by default, if it
            moves pixels. Tasks with masks refuse one that moves pixels and does not fit masks.
        order: its place, the lowest first. The library has shift 10, flip 20, morphology 30, affine
            40, the crop 60, erase 70 and color_jitter 80; after the latter, values may leave [0, 1].
        parameters: settings that only say how, such as a threshold. They switch nothing on or off.
        replace: whether it may take the place of one with this name.

    Raises:
        ValueError: the name is taken, or `settings` has a field of another augmentation's.

    Example:
        >>> @dataclass(frozen=True)
        ... class NoiseSettings:
        ...     noise: float = setting(0.0, "standard deviation of the noise", low=0)
        >>> @register_augmentation("noise", NoiseSettings, moves_pixels=False)
        ... def add_noise(images, settings, generator):
        ...     noise = torch.randn(images.shape, generator=generator, device=generator.device)
        ...     return images + settings.noise * noise.to(images)
    """

    def register(function: Change) -> Change:
        for f in fields(settings):
            if "about" not in f.metadata:
                raise ArgumentError("settings", f"expected {f.name} to be made by `setting`")
            for augmentation in AUGMENTATIONS.registered():
                is_taken = f.name in augmentation.settings.__dataclass_fields__
                if is_taken and augmentation.name != name:
                    raise ArgumentError(
                        "settings",
                        f"{f.name!r} is one of {augmentation.name}; expected another name",
                    )
        get_type_hints(settings)  # raises NameError here for a type that is not known
        fits = moves_pixels if fits_masks is None else fits_masks
        augmentation = Augmentation(
            name, function, settings, moves_pixels, fits, order, tuple(parameters)
        )
        AUGMENTATIONS.add(name, augmentation, replace=replace)
        return function

    return register


def ordered_augmentations() -> list[Augmentation]:
    """All augmentations, the first to be applied first; of equal order the one registered first."""
    return sorted(AUGMENTATIONS.values(), key=lambda augmentation: augmentation.order)

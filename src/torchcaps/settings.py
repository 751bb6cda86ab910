"""What a training run is: settings in groups. Recipes, flags of the command line and files are derived from them.

Every setting has a name of its own, so that it may be given with or without its group: `{"lr": 0.1}` is
`{"optimizer": {"lr": 0.1}}`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from torchcaps.errors import ArgumentError, UnknownNameError, check_known, check_range

LARGEST_SEED = 2**31 - 1  # the random numbers of numpy, which draw the split, take seeds of 32 bits
_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    dict: "options by name",
}


def setting(
    default: Any,
    about: str,
    *,
    low: float | None = None,
    high: float | None = None,
    name: str | None = None,
    valid: tuple[Callable[[float], bool], str] = (lambda _: True, ""),
) -> Any:
    """A field of a group: its default, what it is in one line, its range, its name without the group, and a test of a
    number with what it expects in words."""
    known = {"about": about, "low": low, "high": high, "name": name, "valid": valid}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=known)
    return field(default=default, metadata=known)


@dataclass(frozen=True)
class _Group:
    """Settings that belong together. Each value is checked against its type and range."""

    def __post_init__(self) -> None:
        hints = _HINTS[type(self)]
        for f in fields(self):
            flat = f.metadata["name"] or f.name
            value = _taken(flat, getattr(self, f.name), hints[f.name])
            object.__setattr__(self, f.name, value)
            if isinstance(value, int | float) and not isinstance(value, bool):
                check_range(flat, value, f.metadata["low"], f.metadata["high"])
                test, expected = f.metadata["valid"]
                if not test(value):
                    raise ValueError(f"{flat}: expected {expected}, got {value}")


@dataclass(frozen=True)
class ModelSettings(_Group):
    """Which model."""

    name: str = setting("capsnet", "name of a registered model", name="model")
    options: dict[str, Any] = setting({}, "the model's own options by name", name="model_options")  # noqa: RUF009


@dataclass(frozen=True)
class DataSettings(_Group):
    """Which images."""

    name: str = setting(
        "digits",
        "name of a data set (`torchcaps data list`), or a path: class folders, .npz, .csv, IDX files, ...",
        name="data",
    )
    root: str | None = setting(None, "folder in which a named data set is looked for first")
    max_bytes: int | None = setting(
        None,
        "memory that its files may expand to; by default 256 MiB, or 32 times their size on disk",
        low=1,
    )
    img_size: tuple[int, int] | int | None = setting(
        None, "height and width to which images are resized, or one for both"
    )
    crop: int | None = setting(
        None,
        "side of the window that the model sees: anywhere in training, in the middle otherwise",
        low=1,
    )
    epoch_size: int | None = setting(
        None, "images of an epoch, drawn anew for each; by default all, once", low=1
    )
    holdout: float = setting(
        0.1,
        "training images kept for validation: a fraction below 1, or a count",
        valid=(lambda n: n > 0 and (n <= 1 or n == int(n)), "a fraction below 1 or a whole count"),
    )
    per_class: int | None = setting(
        None, "labeled images of each class to train with; by default all", low=1
    )


@dataclass(frozen=True)
class TaskSettings(_Group):
    """What the model is trained for."""

    name: str = setting(
        "auto", "auto is what the model is made for, and what the data has", name="task"
    )
    loss: str = setting("auto", "auto is what the model's paper has")
    reconstruction: float | None = setting(
        None,
        "weight of the summed squared error of a reconstruction per 784 values of an image; by default 0.0005 "
        "with the margin loss and a decoder, else 0, which leaves it out",
        low=0,
    )
    label_smoothing: float = setting(
        0.0, "share of cross-entropy's target that all classes get alike", low=0, high=1
    )


@dataclass(frozen=True)
class OptimizerSettings(_Group):
    """How weights change."""

    name: str = setting("adam", "adam, adamw, sgd, or a registered one", name="optimizer")
    lr: float | None = setting(
        None,
        "peak learning rate; by default that of the task, 0.001 for classes",
        valid=(lambda lr: lr > 0, "a number above 0"),
    )
    weight_decay: float = setting(0.0, "of every weight in each step", low=0)
    momentum: float = setting(0.9, "of sgd", low=0, high=1)
    nesterov: bool = setting(False, "Nesterov's momentum, of sgd")
    clip: float | Literal["auto"] = setting(
        "auto",
        "largest norm of the gradient; 0 is none, auto is none for the spread loss and 1 for others",
        low=0,
    )

    def __post_init__(self) -> None:
        if self.clip is None:  # as runs before "auto" say it
            object.__setattr__(self, "clip", 0.0)
        super().__post_init__()


@dataclass(frozen=True)
class ScheduleSettings(_Group):
    """Learning rate over time."""

    name: Literal["warmup_cosine", "cosine", "paper", "constant", "steps", "exponential"] | None = (
        setting(
            None,
            "by default that of the task, warmup_cosine for classes: it rises for 5 % of the steps, but "
            "at least for 40 or half of them, and falls to zero along a cosine; cosine falls so "
            "from the start; constant rises and stays; "
            "paper is lr * 0.96 ** (step / 2000) as in the authors' code of 2017; steps falls by a factor "
            "at milestones; exponential falls by a factor after each epoch, to a tenth at the lowest",
            name="schedule",
        )
    )
    milestones: tuple[int, ...] = setting(
        (), "epochs after which the rate falls, with the schedule steps"
    )
    decay: float = setting(
        0.1, "factor by which it falls, with the schedules steps and exponential", low=0, high=1
    )


@dataclass(frozen=True)
class AugmentationSettings(_Group):
    """How training images are changed at random."""

    shift: int = setting(2, "largest shift in pixels along each axis, zeros come in", low=0)
    flip: bool = setting(False, "mirror half of the images")
    degrees: float | None = setting(
        None, "largest rotation either way; by default that of the task", low=0
    )
    zoom: float | None = setting(
        None,
        "largest change of size either way, as a fraction; by default that of the task",
        low=0,
        high=0.9,
    )
    shear: float | None = setting(
        None,
        "largest shear either way, pixels to the side for each down; by default that of the task",
        low=0,
    )
    aspect: float = setting(0.0, "largest share of its width that an image loses", low=0, high=0.9)
    morphology: float = setting(
        0.0,
        "share of images in which what is bright is made a pixel thicker, or thinner",
        low=0,
        high=1,
    )
    erase: int = setting(
        0, "side of a square in pixels that is set to zero at a random place", low=0
    )
    color_jitter: bool = setting(
        False, "vary brightness and contrast as in the smallNORB experiments"
    )


@dataclass(frozen=True)
class RunSettings(_Group):
    """How long, where, and what is kept."""

    epochs: int = setting(10, "passes over the training images", low=1)
    batch_size: int | None = setting(
        None, "images per step; by default 8 to 128, as suits the number of images", low=1
    )
    stop_at: float | None = setting(
        None,
        "end the training after the first epoch with this score on held-out images, and keep that epoch's model",
        valid=(lambda score: 0 < score <= 1, "a score in (0, 1]"),
    )
    precision: Literal["auto", "fp32", "bf16"] = setting(
        "auto", "auto is bf16 where the hardware multiplies it"
    )
    device: str = setting("auto", "auto, cpu, cuda, cuda:1, ...")
    seed: int = setting(0, "of weights, order, augmentation and split", low=0, high=LARGEST_SEED)
    checkpoint_every: int = setting(
        100, "steps between checkpoints; there is also one after each epoch", low=1
    )
    keep_epochs: bool = setting(False, "keep the model of every epoch, to be measured afterwards")


@dataclass(frozen=True)
class TrainConfig:
    """A training run: settings in groups, each with a class of its own.

    Example:
        >>> config = TrainConfig.of(model="capsnet", data="digits", epochs=3)
        >>> config.run.epochs
        3
    """

    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    task: TaskSettings = field(default_factory=TaskSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    augmentation: AugmentationSettings = field(default_factory=AugmentationSettings)
    run: RunSettings = field(default_factory=RunSettings)

    @classmethod
    def of(cls, **settings: Any) -> TrainConfig:
        """A run of these settings, by their names without groups, or by groups. Raises ValueError for a value of
        another kind or out of range, and its UnknownNameError for a name that is no setting."""
        return cls.from_dict(settings)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainConfig:
        """The inverse of `to_dict`; also reads settings without groups, and what early versions wrote. Raises
        ValueError as `of`, or for what is no mapping."""
        return cls()._with(flattened(values))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, by groups."""
        return asdict(self)

    def flat(self) -> dict[str, Any]:
        """JSON-ready, every setting by its name without a group."""
        return flattened(self.to_dict())

    def updated(self, **changes: Any) -> TrainConfig:
        """A copy with those of the changes that are not None, by their names without groups, or by groups."""
        return self._with(
            {name: value for name, value in flattened(changes).items() if value is not None}
        )

    def filled(self, defaults: Mapping[str, Any]) -> TrainConfig:
        """A copy in which these take the place of settings that are None."""
        flat = self.flat()
        return self._with({name: value for name, value in defaults.items() if flat[name] is None})

    def _with(self, changes: Mapping[str, Any]) -> TrainConfig:
        by_group: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            group, key = NAMES[name][:2]
            by_group.setdefault(group, {})[key] = value
        return replace(
            self, **{group: replace(getattr(self, group), **new) for group, new in by_group.items()}
        )


GROUPS: dict[str, type[Any]] = get_type_hints(TrainConfig)
_HINTS: dict[type[Any], dict[str, Any]] = {kind: get_type_hints(kind) for kind in GROUPS.values()}
# Name without a group -> group, name in it, what it is in one line, and its type.
NAMES: dict[str, tuple[str, str, str, Any]] = {
    f.metadata["name"] or f.name: (group, f.name, f.metadata["about"], _HINTS[kind][f.name])
    for group, kind in GROUPS.items()
    for f in fields(kind)
}
EARLIER: dict[
    str, Callable[[dict[str, Any]], dict[str, Any]]
] = {}  # "kind" of an early configuration -> settings


def flattened(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by their names without groups. Raises ValueError for no mapping, and its UnknownNameError for a name
    that is neither a setting nor a group."""
    if not isinstance(values, Mapping):
        raise ValueError(f"expected names with values, got {values!r}")
    if "kind" in values:
        check_known("kind of run", str(values["kind"]), EARLIER)
        values = EARLIER[values["kind"]](dict(values))
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in GROUPS and isinstance(value, Mapping):
            known = {key: flat for flat, (group, key, *_) in NAMES.items() if group == name}
            for key, one in value.items():
                check_known(f"setting of {name}", key, known)
                found[known[key]] = one
        elif name in NAMES:
            found[name] = value
        else:
            raise UnknownNameError("setting", name, [*NAMES, *GROUPS])
    return found


def _taken(name: str, value: Any, hint: Any) -> Any:
    """The value as `hint` asks for it: None, one of its words, or the one type that it has beside them."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    if (value is None and NoneType in kinds) or value in words:
        return value
    rest = [kind for kind in kinds if kind is not NoneType and get_origin(kind) is not Literal]
    if not rest:
        raise UnknownNameError(name, str(value), words)
    kind = get_origin(rest[0]) or rest[0]
    if kind is tuple:
        return _numbers(name, value, pair=Ellipsis not in get_args(rest[0]))
    if isinstance(value, Path) and kind is str:
        return str(value)
    wanted = (int, float) if kind is float else kind
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        raise ArgumentError(name, f"expected {_WORDS[kind]}, got {value!r}")
    if kind is float and not math.isfinite(value):
        raise ArgumentError(name, f"expected a finite number, got {value}")
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:  # of a dictionary
        raise ArgumentError(name, f"expected plain values that a file can hold ({error})") from None
    return value


def _numbers(name: str, value: Any, pair: bool) -> tuple[int, ...]:
    """Whole numbers above zero: a pair (or one for both), or any count."""
    sides = (value, value) if pair and isinstance(value, int) else value
    good = isinstance(sides, list | tuple) and all(type(side) is int and side > 0 for side in sides)
    if not good or (pair and len(sides) != 2):
        raise ArgumentError(
            name, f"expected {'height and width in pixels' if pair else 'epochs'}, got {value!r}"
        )
    return tuple(sides)

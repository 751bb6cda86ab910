"""What a training run is: one flat, frozen, JSON-ready description."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from torchcaps.errors import UnknownNameError, check_range

Precision = Literal["auto", "fp32", "bf16"]
Schedule = Literal["short", "paper", "constant"]
Loss = Literal["auto", "margin", "spread", "cross_entropy"]

# Lowest values of the whole numbers; the random numbers of numpy, which draw the split, take seeds of 32 bits.
_WHOLE = {"epochs": 1, "checkpoint_every": 1, "shift": 0, "seed": 0}
_WHOLE_OR_NONE = ("max_bytes", "crop", "epoch_size", "batch_size", "per_class")
_NUMBER_OR_NONE = ("stop_at",)
_LARGEST_SEED = 2**31 - 1
_NUMBERS = ("lr", "holdout", "reconstruction", "degrees", "zoom")


@dataclass(frozen=True)
class TrainConfig:
    """A training run.

    Attributes:
        model: name of a registered model.
        model_options: its own options, such as {"iterations": 3}.
        data: name of a data set, or a path.
        root: folder in which a named set is looked for first.
        max_bytes: memory that the files of a data set may expand to; None is by their size on disk (`load_dataset`).
        img_size: (height, width) to which images are resized; None keeps theirs.
        crop: side of the window that the model sees: drawn at random in training, the middle otherwise; None is all.
        epochs: passes over the training images, at least 1.
        epoch_size: images of an epoch, drawn anew for each; more than there are take them again. None is all, once.
        batch_size: images per step, at least 1; None is a number from 8 to 128 that suits the number of images, see
            `defaults.batch_size`.
        lr: peak learning rate of Adam, above 0.
        schedule: "short" rises for 5 % of the steps, but at least for 40 or half of them, and then falls to zero along
            a cosine; "constant" rises likewise and then stays; "paper" is lr * 0.96 ** (step / 2000) with a floor of
            1e-6, as in the authors' code, but it too rises at first, for at most 1,000 steps.
        holdout: training images kept for validation: a fraction below 1, or a count.
        per_class: labelled images of each class to train with, drawn by the seed; None is all that are not held out.
        stop_at: end the training after the first epoch with this validation accuracy, in (0, 1], and keep that epoch's
            model; models are compared at equal accuracy so. None trains to the end and keeps the best.
        loss: "margin", "spread" with a margin that rises from 0.2 to 0.9, "cross_entropy" for networks without
            capsules, or "auto", what the model's paper has.
        reconstruction: weight of the summed squared error per 784 values of an image; 0.0005 in the paper, 0 leaves it
            out. It goes with the margin loss.
        shift: largest shift in pixels, drawn per sample and axis, zero fill; 2 in the paper.
        flip: whether to mirror half of the images.
        degrees: largest rotation either way.
        zoom: largest change of size either way, as a fraction.
        relight: whether brightness and contrast vary as in the smallNORB experiments (63/255 either way, 0.2 to 1.8).
        clip: largest norm of the gradient; 0 is none, "auto" is none for the spread loss and 1 for others.
        precision: "auto" is bf16 autocast where the device computes it in hardware, else fp32.
        device: "auto", "cpu", "cuda", "cuda:1", ...
        seed: of weights, order, augmentation and split, from 0 to 2^31 - 1.
        checkpoint_every: steps between checkpoints; there is also one after each epoch.
        keep_epochs: whether the model of every epoch is kept, to be measured afterwards.
    """

    model: str = "capsnet"
    model_options: dict[str, Any] = field(default_factory=dict)
    data: str = "digits"
    root: str | None = None
    max_bytes: int | None = None
    img_size: tuple[int, int] | None = None
    crop: int | None = None
    epochs: int = 10
    epoch_size: int | None = None
    batch_size: int | None = None
    lr: float = 1e-3
    schedule: Schedule = "short"
    holdout: float = 0.1
    per_class: int | None = None
    stop_at: float | None = None
    loss: Loss = "auto"
    reconstruction: float = 0.0005
    shift: int = 2
    flip: bool = False
    degrees: float = 0.0
    zoom: float = 0.0
    relight: bool = False
    clip: float | Literal["auto"] = "auto"
    precision: Precision = "auto"
    device: str = "auto"
    seed: int = 0
    checkpoint_every: int = 100
    keep_epochs: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for a value of another kind or out of range."""
        for name in ("data", "root"):
            if isinstance(getattr(self, name), Path):
                object.__setattr__(self, name, str(getattr(self, name)))
        object.__setattr__(self, "img_size", _size(self.img_size))
        if self.clip is None:  # as runs before "auto" say it
            object.__setattr__(self, "clip", 0.0)
        self._check_kinds()
        for name, low in _WHOLE.items():
            check_range(name, getattr(self, name), low=low)
        check_range("seed", self.seed, high=_LARGEST_SEED)
        for name in _WHOLE_OR_NONE:
            if getattr(self, name) is not None:
                check_range(name, getattr(self, name), low=1)
        if self.stop_at is not None and not 0 < self.stop_at <= 1:
            raise ValueError(f"stop_at: expected an accuracy in (0, 1], got {self.stop_at}")
        for name in ("reconstruction", "degrees", *self._clipped()):
            check_range(name, getattr(self, name), low=0)
        check_range("zoom", self.zoom, low=0, high=0.9)
        if not self.lr > 0:
            raise ValueError(f"lr: expected a number above 0, got {self.lr}")
        if not self.holdout > 0 or (self.holdout > 1 and self.holdout != int(self.holdout)):
            raise ValueError(f"holdout: expected a fraction below 1 or a whole count, got {self.holdout}")
        for name, choices in (("schedule", Schedule), ("precision", Precision), ("loss", Loss)):
            if getattr(self, name) not in get_args(choices):
                raise UnknownNameError(name, getattr(self, name), get_args(choices))

    def _check_kinds(self) -> None:
        for name in (*_WHOLE, *self._given(_WHOLE_OR_NONE)):
            _check_kind(name, getattr(self, name), int, "a whole number")
        for name in (*_NUMBERS, *self._clipped(), *self._given(_NUMBER_OR_NONE)):
            _check_kind(name, getattr(self, name), (int, float), "a number")
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"{name}: expected a finite number, got {getattr(self, name)}")
        for name in ("model", "data", "device", "schedule", "precision", "loss", *self._given(("root",))):
            _check_kind(name, getattr(self, name), str, "text")
        for name in ("flip", "relight", "keep_epochs"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}: expected true or false, got {getattr(self, name)!r}")
        _check_kind("model_options", self.model_options, dict, "options by name")
        try:
            json.dumps(self.model_options, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"model_options: expected plain values that a file can hold ({error})") from None

    def _clipped(self) -> tuple[str, ...]:
        """The name of `clip` where it is a number and not left to the rule."""
        return () if self.clip == "auto" else ("clip",)

    def _given(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the names that are not None."""
        return tuple(name for name in names if getattr(self, name) is not None)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        """The inverse of `to_dict`.

        Raises:
            ValueError: for a key that is not a field, or a value that `TrainConfig` refuses.
        """
        if not isinstance(values, dict):
            raise ValueError(f"expected names with values, got {values!r}")
        known = {f.name for f in fields(cls)}
        for key in values:
            if key not in known:
                raise UnknownNameError("setting", key, known)
        return cls(**values)

    def updated(self, **changes: Any) -> TrainConfig:
        """A copy with those of the changes that are not None."""
        return replace(self, **{key: value for key, value in changes.items() if value is not None})


def _check_kind(name: str, value: Any, kind: type | tuple[type, ...], words: str) -> None:
    if isinstance(value, bool) or not isinstance(value, kind):
        raise ValueError(f"{name}: expected {words}, got {value!r}")


def _size(value: Any) -> tuple[int, int] | None:
    """(height, width) from a pair or from one side; None stays None."""
    if value is None:
        return None
    sides = (value, value) if isinstance(value, int) else value
    if not isinstance(sides, list | tuple) or len(sides) != 2 or not all(isinstance(s, int) and s > 0 for s in sides):
        raise ValueError(f"img_size: expected height and width in pixels, got {value!r}")
    return int(sides[0]), int(sides[1])

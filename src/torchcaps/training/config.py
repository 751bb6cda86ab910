"""What a training run is: one flat, frozen, JSON-ready description."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from torchcaps.errors import RunError, UnknownNameError, check_range

Precision = Literal["auto", "fp32", "bf16"]
Schedule = Literal["short", "paper", "constant"]


@dataclass(frozen=True)
class TrainConfig:
    """A training run.

    Attributes:
        model: name of a registered model.
        model_options: its own options, such as {"iterations": 3}.
        data: name of a data set, or a path.
        root: folder in which a named set is looked for first.
        img_size: (height, width) to which images are resized; None keeps theirs.
        epochs: passes over the training images, at least 1.
        batch_size: images per step, at least 1.
        lr: peak learning rate of Adam, above 0.
        schedule: "short" rises for 5 % of the steps and then falls to zero along a cosine; "paper" is 0.96 ** (step / 2000) with a
            floor of 1e-6, as in the authors' code; "constant".
        holdout: training images kept for validation: a fraction below 1, or a count.
        reconstruction: weight of the summed squared error per 784 values of an image; 0.0005 in the paper, 0 leaves it out.
        shift: largest shift in pixels, drawn per sample and axis, zero fill; 2 in the paper.
        flip: whether to mirror half of the images.
        degrees: largest rotation either way.
        zoom: largest change of size either way, as a fraction.
        clip: largest norm of the gradient, or None.
        precision: "auto" is bf16 autocast where the device computes it in hardware, else fp32.
        device: "auto", "cpu", "cuda", "cuda:1", ...
        seed: of weights, order, augmentation and split.
        checkpoint_every: steps between checkpoints; there is also one after each epoch.
    """

    model: str = "capsnet"
    model_options: dict[str, Any] = field(default_factory=dict)
    data: str = "digits"
    root: str | None = None
    img_size: tuple[int, int] | None = None
    epochs: int = 10
    batch_size: int = 128
    lr: float = 1e-3
    schedule: Schedule = "short"
    holdout: float = 0.1
    reconstruction: float = 0.0005
    shift: int = 2
    flip: bool = False
    degrees: float = 0.0
    zoom: float = 0.0
    clip: float | None = None
    precision: Precision = "auto"
    device: str = "auto"
    seed: int = 0
    checkpoint_every: int = 100

    def __post_init__(self) -> None:
        """Raise ValueError for a value out of range."""
        for name in ("epochs", "batch_size", "checkpoint_every"):
            check_range(name, getattr(self, name), low=1)
        for name in ("reconstruction", "shift", "degrees", "seed"):
            check_range(name, getattr(self, name), low=0)
        check_range("zoom", self.zoom, low=0, high=0.9)
        if not self.lr > 0:
            raise ValueError(f"lr: expected a number above 0, got {self.lr}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip: expected a number above 0, got {self.clip}")
        if not self.holdout > 0:
            raise ValueError(f"holdout: expected a fraction below 1 or a count, got {self.holdout}")
        for name, choices in (("schedule", Schedule), ("precision", Precision)):
            if getattr(self, name) not in get_args(choices):
                raise UnknownNameError(name, getattr(self, name), get_args(choices))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainConfig:
        """The inverse of `to_dict`.

        Raises:
            RunError: for a key that is not a field.
        """
        known = {f.name for f in fields(cls)}
        for key in values:
            if key not in known:
                raise RunError(str(UnknownNameError("configuration key", key, known)))
        size = values.get("img_size")
        return cls(**(values | {"img_size": None if size is None else (int(size[0]), int(size[1]))}))

    def updated(self, **changes: Any) -> TrainConfig:
        """A copy with those of the changes that are not None."""
        return replace(self, **{key: value for key, value in changes.items() if value is not None})


@dataclass(frozen=True)
class Recipe:
    """A published experiment as one file: what to run, and the figure it answers to.

    Attributes:
        name: the file's stem.
        title: one line.
        published: the figure of the paper, in words, with its source.
        config: the run.
    """

    name: str
    title: str
    published: str
    config: TrainConfig


def recipes_folder() -> Path:
    """Where the recipes are: inside the installed package, or at the top of a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "recipes"
    return installed if installed.is_dir() else package.parents[1] / "recipes"


def list_recipes() -> list[str]:
    """Names of the recipes that ship with the library."""
    return sorted(path.stem for path in recipes_folder().glob("**/*.toml"))


def load_recipe(name_or_path: str) -> Recipe:
    """Read a recipe by name, or from a `.toml` file.

    Raises:
        UnknownNameError: for a name that is no recipe.
        RunError: for a file that cannot be read as one.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml":
        found = [p for p in recipes_folder().glob("**/*.toml") if p.stem == name_or_path]
        if not found:
            raise UnknownNameError("recipe", name_or_path, list_recipes())
        path = found[0]
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        config = TrainConfig.from_dict(content["run"])
        return Recipe(path.stem, content["title"], content["published"], config)
    except OSError as error:
        raise RunError(f"recipe {path}: cannot be read ({error.strerror})") from error
    except KeyError as error:
        raise RunError(f"recipe {path}: the entry {error} is missing") from error
    except (tomllib.TOMLDecodeError, TypeError, ValueError) as error:
        raise RunError(f"recipe {path}: {error}") from error

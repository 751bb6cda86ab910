"""Checkpoints: one safetensors file whose header carries JSON. Nothing in it is code; writing is atomic."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from torchcaps.data import Preprocess
from torchcaps.errors import RunError, TorchcapsError, TrainingError, check_regular
from torchcaps.models import create_model

MODEL_FILE = "model.safetensors"
LAST_FILE = "last.safetensors"
_KEY = "torchcaps"


class OptionError(ValueError):
    """An option that a model does not take."""


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` that replaces it when the block ends well, and is removed when it does not.

    Raises:
        TrainingError: when the file cannot be written.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        raise TrainingError(
            f"{path}: cannot be written ({_reason(error)}); what was there before is unchanged"
        ) from error
    finally:
        with suppress(OSError):  # not there any more, or in a place where nothing ever was
            partial.unlink()


def _reason(error: Exception) -> str:
    """Why a write failed, in the system's words; safetensors wraps them in its own."""
    words = getattr(error, "strerror", None) or str(error)
    return re.sub(r"^.*I/O error: | \(os error \d+\)$", "", words)


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically."""
    with atomic(path) as partial:
        partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def save_tensors(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """Write tensors and a JSON description as one file, atomically; equal content gives equal bytes."""
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with atomic(path) as partial:
        save_file(kept, partial, metadata={_KEY: json.dumps(about, sort_keys=True)})


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors (on the CPU) and description of a file written by `save_tensors`.

    Raises:
        RunError: for a file that is absent, damaged, or not of this kind.
    """
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        about = None if text is None else json.loads(text)
    except (OSError, SafetensorError, ValueError) as error:
        raise RunError(f"{path}: is no readable checkpoint ({str(error).splitlines()[0]})") from error
    if not isinstance(about, dict):
        raise RunError(f"{path}: was not written by torchcaps (its header says nothing of a model)")
    return tensors, about


def describe_model(
    name: str, options: dict[str, Any], classes: tuple[str, ...], preprocess: Preprocess
) -> dict[str, Any]:
    """What a checkpoint says of its model: all that `load` needs."""
    return {"model": name, "options": options, "classes": list(classes), "preprocess": preprocess.to_dict()}


def build_model(about: dict[str, Any]) -> nn.Module:
    """A fresh model of this description, with `.classes` (names) and `.preprocess` (what `predict` applies).

    Raises:
        OptionError: for an option that the model does not take. ValueError: for sizes or values that it refuses.
    """
    preprocess = Preprocess.from_dict(about["preprocess"])
    sizes: dict[str, Any] = {"in_chans": preprocess.in_chans, "img_size": preprocess.model_size}
    try:
        model = create_model(about["model"], num_classes=len(about["classes"]), **sizes, **about["options"])
    except TypeError as error:
        given = ", ".join(f"{name}={value!r}" for name, value in about["options"].items())
        raise OptionError(f"{about['model']} takes no {given} ({str(error).splitlines()[0]})") from error
    model.classes = tuple(about["classes"])  # type: ignore[assignment]
    model.preprocess = preprocess  # type: ignore[assignment]
    return model


def load(checkpoint_or_run_folder: str | Path, *, device: str | torch.device = "cpu") -> nn.Module:
    """A trained model in evaluation mode.

    Args:
        checkpoint_or_run_folder: a `.safetensors` file, or a run folder (its best model by validation is taken).
        device: where to put it.

    Returns:
        The model, with `.classes` (names) and `.preprocess` (path, picture or array -> `[channels, height, width]`).

    Raises:
        RunError: for a path that is absent, damaged, or holds no model.
    """
    path = Path(checkpoint_or_run_folder)
    if not path.exists():
        raise RunError(f"{path}: no such run folder or model file")
    if path.is_dir():
        path = path / MODEL_FILE
        if not path.exists():
            raise RunError(
                f"{path}: there is no trained model here; was training stopped before its first epoch ended?"
            )
    tensors, about = load_tensors(path)
    if "kind" in about:  # such as a transforming auto-encoder
        raise RunError(f"{path}: holds a {str(about['kind']).replace('_', ' ')}, not a classifier; see its own page")
    if "model" not in about:
        raise RunError(f"{path}: holds the state of a training, not a model; load {MODEL_FILE} of that run")
    try:
        model = build_model(about)
        model.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError, TorchcapsError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error).splitlines()[-1].strip()
        raise RunError(f"{path}: its weights do not fit the model it names ({reason})") from error
    return model.to(device).eval()

"""Checkpoints: one safetensors file whose metadata is JSON. Nothing in it is code; writing is atomic.

The metadata holds a description, the number of the format, and a checksum (CRC-32) of all of it.
"""

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor, nn

from torchcaps.data import Preprocess
from torchcaps.data.pixels import size_pair
from torchcaps.errors import ArgumentError, RunError, TrainingError, check_regular, one_line
from torchcaps.models import create_model, model_info
from torchcaps.nn import use_generator
from torchcaps.training.files import atomic
from torchcaps.types import model_metadata, set_model_metadata, spec_of

FORMAT = 1  # of run folders and checkpoints; another one is refused
MODEL_FILE = "model.safetensors"
LAST_FILE = "last.safetensors"
PREVIOUS_FILE = "previous.safetensors"
METADATA_KEY = "torchcaps"
MAX_HEADER_BYTES = 16 << 20  # names of a hundred thousand classes take a fifth of it

Shapes = dict[str, tuple[list[int], str]]  # name of a tensor -> sizes, and type in the file's words


class OptionError(ValueError):
    """An option that a model does not take."""


def save_tensors(
    path: Path,
    tensors: dict[str, Tensor],
    description: dict[str, Any],
    *,
    previous: Path | None = None,
) -> None:
    """Write tensors and a JSON-ready description as one file, by `atomic`.

    Equal content gives equal bytes. Raises TrainingError for a type of tensor that a checkpoint
    does not hold, or when the file cannot be written.
    """
    # Tensors that share memory are stored one by one.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    content = {"format": FORMAT, **description}
    content["crc32"] = _checksum(copies, content)
    metadata = {METADATA_KEY: json.dumps(content, sort_keys=True)}
    try:
        file_bytes = serialize(copies, metadata)
    except (SafetensorError, ValueError, KeyError) as error:
        raise TrainingError(f"{path}: cannot be written ({one_line(str(error))})") from error
    with atomic(path, previous) as partial:
        partial.write_bytes(file_bytes)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors (on the CPU) and description of a file written by `save_tensors`.

    Raises RunError for a file that is absent, damaged (one bit is enough), or of another format.
    """
    with _opened(path) as file:
        content = _read_content(path, file)
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        checksum = content.pop("crc32", None)
        if checksum != _checksum(tensors, content):
            raise ValueError("its content does not match its checksum")
        del content["format"]
        return tensors, content


def read_header(path: Path) -> tuple[Shapes, dict[str, Any]]:
    """Names, sizes and types of a file's tensors, and its description; no tensor is read.

    Errors as `load_tensors`, but for damage outside of the header.
    """
    with _opened(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        shapes = {name: (part.get_shape(), part.get_dtype()) for name, part in slices.items()}
        content = _read_content(path, file)
        return shapes, {k: v for k, v in content.items() if k not in ("format", "crc32")}


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file with a header of at most 16 MiB; what fails while it is open is a RunError."""
    try:
        check_regular(path)
        with open(path, "rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
        if header_bytes > MAX_HEADER_BYTES:
            raise ValueError(
                f"expected a header of at most {MAX_HEADER_BYTES} bytes, got {header_bytes}"
            )
        with safe_open(path, framework="pt") as tensors:
            yield tensors
    except RecursionError as error:
        raise RunError(
            f"{path}: is no readable checkpoint (its description is nested too deep)"
        ) from error
    except (OSError, SafetensorError, ValueError) as error:
        raise RunError(f"{path}: is no readable checkpoint ({one_line(str(error))})") from error


def _read_content(path: Path, file: Any) -> dict[str, Any]:
    """The description with format and checksum."""
    content = json.loads((file.metadata() or {}).get(METADATA_KEY, "null"))
    if not isinstance(content, dict):
        raise RunError(f"{path}: was not written by torchcaps (its header says nothing of a model)")
    if content.get("format") != FORMAT:
        raise RunError(
            f"{path}: expected a checkpoint of format {FORMAT}, got {content.get('format')}"
        )
    return content


def _checksum(tensors: dict[str, Tensor], content: dict[str, Any]) -> int:
    """CRC-32 of names, types, sizes and bytes of tensors, and of the description."""
    checksum = zlib.crc32(json.dumps(content, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        checksum = zlib.crc32(f"{name} {tensor.dtype} {[*tensor.shape]}".encode(), checksum)
        checksum = zlib.crc32(as_bytes(tensor), checksum)
    return checksum


def as_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, not copied."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def describe_model(
    name: str,
    options: dict[str, Any],
    classes: tuple[str, ...],
    preprocess: Preprocess,
    task: str = "classify",
) -> dict[str, Any]:
    """What a checkpoint says of its model: all that `load` needs."""
    model = {"model": name, "options": options, "task": task}
    return model | {"classes": list(classes), "preprocess": preprocess.to_dict()}


def build_model(about: dict[str, Any], generator: torch.Generator | None = None) -> nn.Module:
    """A fresh model of this description, with `.classes` (names), `.preprocess` (what `predict` applies) and `.task`.
    Raises OptionError for an option that the model does not take; ValueError for sizes or values that it refuses;
    KeyError for a description without one of its parts; DataError for a preprocessing that is none."""
    check_description(about)
    preprocess = Preprocess.from_dict(about["preprocess"])
    sizes: dict[str, Any] = {"in_chans": preprocess.in_chans, "img_size": preprocess.model_size}
    if model_info(about["model"]).named:
        sizes["classes"] = tuple(about["classes"])
    sizes["num_classes"] = len(about["classes"])
    try:
        model = create_model(about["model"], generator=generator, **sizes, **about["options"])
    except TypeError as error:
        given = ", ".join(f"{name}={value!r}" for name, value in about["options"].items())
        raise OptionError(
            f"{about['model']} takes no {given} ({str(error).splitlines()[0]})"
        ) from error
    metadata = replace(
        model_metadata(model),
        classes=tuple(about["classes"]),
        preprocess=preprocess,
        task=about.get("task", spec_of(model).task),
    )
    set_model_metadata(model, metadata)
    return model


def check_description(about: dict[str, Any]) -> None:
    """Raise ValueError unless a description has values of the kinds that `describe_model` writes."""
    model, options, classes = about["model"], about["options"], about["classes"]
    if not isinstance(model, str):
        raise ArgumentError("model", f"expected a name, got {one_line(repr(model))}")
    if not isinstance(options, dict):
        raise ArgumentError("options", f"expected values by name, got {one_line(repr(options))}")
    try:
        json.dumps(options, allow_nan=False)
    except ValueError as error:
        raise ArgumentError("options", f"expected finite numbers ({error})") from None
    if not isinstance(classes, list | tuple) or not all(isinstance(name, str) for name in classes):
        raise ArgumentError("classes", f"expected a list of names, got {one_line(repr(classes))}")


def check_fit(shapes: Shapes, model: nn.Module) -> None:
    """Raise ValueError unless a file's tensors are those of the model's state, in name, sizes and kind of number."""
    state = model.state_dict()
    for problem, names in (
        ("missing", state.keys() - shapes.keys()),
        ("unexpected", shapes.keys() - state.keys()),
    ):
        if names:
            raise ValueError(f"{problem} weights: {', '.join(sorted(names)[:3])}")
    for name, tensor in state.items():
        sizes, kind = shapes[name]
        if sizes != list(tensor.shape):
            raise ValueError(
                f"size mismatch for {name}: {sizes} in the file, "
                f"{list(tensor.shape)} by its description"
            )
        if kind.startswith(("F", "BF")) != tensor.is_floating_point():
            raise ArgumentError(name, f"expected {tensor.dtype}, got {kind}")


def check_numbers(state: dict[str, Tensor]) -> None:
    """Raise ValueError unless every number of a model's state is finite."""
    for name, tensor in state.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name} holds infinite numbers or NaN")


def shapes_of(state: dict[str, Tensor]) -> Shapes:
    """Sizes of tensors, and whether they are floating point, as `check_fit` takes them."""
    return {
        name: ([*tensor.shape], "F32" if tensor.is_floating_point() else "I64")
        for name, tensor in state.items()
    }


def save(model: nn.Module, path: str | Path) -> Path:
    """Write a model as one file, which `load` reads back with its classes and preprocessing.

    Args:
        model: built by `create_model` or `load`, trained or not.
        path: of the file; its ending is `.safetensors`.

    Returns the path. Raises ArgumentError for a model that was not built so, or was changed since;
    TrainingError when the file cannot be written.
    """
    path, metadata = Path(path), model_metadata(model)
    if path.suffix != ".safetensors":
        raise ArgumentError("path", f"expected a file ending in .safetensors, got {path.name}")
    if not metadata.name:
        raise ArgumentError(
            "model",
            f"expected one that create_model or load has built, got {type(model).__name__}; "
            "keep its state_dict instead",
        )
    options = dict(metadata.options)
    preprocess = Preprocess(size_pair(options.pop("img_size")), options.pop("in_chans"))
    classes = map(str, range(options.pop("num_classes", 0)))
    description = describe_model(
        metadata.name,
        {name: value for name, value in options.items() if name != "classes"},
        metadata.classes or tuple(classes),
        metadata.preprocess or preprocess,
        spec_of(model).task if metadata.task == "auto" else metadata.task,
    )
    try:
        with torch.device("meta"):
            check_fit(shapes_of(model.state_dict()), build_model(description))
    except (ValueError, TypeError) as error:
        raise ArgumentError("model", f"cannot be built again for `load` ({error})") from error
    save_tensors(path, model.state_dict(), description)
    return path


def load(checkpoint_or_run_folder: str | Path, *, device: str | torch.device = "cpu") -> nn.Module:
    """A trained model in evaluation mode, on this device.

    Of a run folder, in place of a `.safetensors` file, the best model by validation is taken. The model has `.classes`
    (names) and `.preprocess` (path, picture or array -> `[channels, height, width]`). Raises RunError for a path that
    is absent, damaged, or holds no model."""
    path = Path(checkpoint_or_run_folder)
    if not path.exists():
        raise RunError(f"{path}: no such run folder or model file")
    if path.is_dir():
        path = path / MODEL_FILE
        if not path.exists():
            why = "was training stopped before its first epoch ended?"
            raise RunError(f"{path}: there is no trained model here; {why}")
    shapes, about = read_header(path)
    if "model" not in about:
        raise RunError(
            f"{path}: holds the state of a training, not a model; load {MODEL_FILE} of that run"
        )
    try:
        with torch.device("meta"):  # the tensors are compared before they or the model take memory
            check_fit(shapes, build_model(about))
        with use_generator(
            torch.Generator()
        ):  # replaced below; the caller's generator is untouched
            model = build_model(about)
        model.load_state_dict(load_tensors(path)[0])
        check_numbers(model.state_dict())
    except RunError:
        raise
    except Exception as error:  # a builder can fail in any way at what another hand wrote
        reason = f"{error} is missing" if isinstance(error, KeyError) else one_line(str(error))
        raise RunError(f"{path}: its weights do not fit the model it names ({reason})") from error
    return model.to(device).eval()

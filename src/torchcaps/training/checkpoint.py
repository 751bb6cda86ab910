"""Checkpoints: one safetensors file whose header carries JSON. Nothing in it is code; writing is atomic.

The header begins with a checksum (CRC-32) of every other byte of the file, header included.
"""

import itertools
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from torchcaps.data import Preprocess
from torchcaps.errors import ArgumentError, RunError, TrainingError, check_regular, one_line
from torchcaps.models import create_model, model_info
from torchcaps.nn import use_generator
from torchcaps.types import ModelMetadata, set_model_metadata, spec_of

MODEL_FILE = "model.safetensors"
LAST_FILE = "last.safetensors"
PREVIOUS_FILE = "previous.safetensors"
KEY, _CHECKSUM = (
    "torchcaps",
    "checksum",
)  # of the header: the description in JSON, and what all other bytes add up to
COSTS = (
    ".beta_u",
    ".beta_a",
)  # of EM routing: one pair for all parents in files of earlier versions
MOST_HEADER = 16 << 20  # bytes: names of a hundred thousand classes take a fifth of it
_FRONT = f'{{"__metadata__":{{"{_CHECKSUM}":"'.encode()
_PLACE, _DIGITS = 8 + len(_FRONT), 8  # of the checksum: where it begins, and its length
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_numbers = itertools.count()

Shapes = dict[str, tuple[list[int], str]]  # name of a tensor -> sizes, and type in the file's words


class OptionError(ValueError):
    """An option that a model does not take."""


@contextmanager
def atomic(path: Path, before: Path | None = None) -> Iterator[Path]:
    """A temporary path beside `path` that replaces it when the block ends well, and is removed when it does not.

    The file that is replaced goes to `before`, if one is named: at every moment one of the two is there and whole.
    TrainingError when the file cannot be written."""
    # The name is of this process and this call alone: two that write one file do not mix.
    partial = path.with_name(f".{path.name}.{os.getpid()}-{next(_numbers)}.partial")
    try:
        yield partial
        with open(partial, "rb+") as file:
            os.fsync(file.fileno())
        if before is not None and path.exists():
            os.replace(path, before)
        move(partial, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise TrainingError(
            f"{path}: cannot be written ({reason}); what was there before is unchanged"
        ) from error
    finally:
        with suppress(OSError):  # not there any more, or in a place where nothing ever was
            partial.unlink()


def move(source: Path, target: Path) -> None:
    """Rename a file within its folder, for good: a power cut after it does not undo it."""
    os.replace(source, target)
    with suppress(
        OSError
    ):  # not every system opens folders, and not every file system synchronizes them
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically."""
    with atomic(path) as partial:
        partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def save_tensors(
    path: Path, tensors: dict[str, Tensor], about: dict[str, Any], *, before: Path | None = None
) -> None:
    """Write tensors and a JSON-ready description as one file, by `atomic`; equal content gives equal bytes.
    TrainingError for a kind of tensor that a checkpoint does not hold, or when the file cannot be written."""
    order = sorted(
        tensors, key=lambda name: (-tensors[name].element_size(), name)
    )  # each begins at a multiple of it
    kept = {name: tensors[name].detach().cpu().contiguous() for name in order}
    header, parts = _header(kept, about), [as_bytes(tensor) for tensor in kept.values()]
    checksum = zlib.crc32(header[_PLACE + _DIGITS :], zlib.crc32(header[:_PLACE]))
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    with atomic(path, before) as partial, open(partial, "wb") as file:
        file.writelines([header, *parts])
        file.seek(_PLACE)
        file.write(_digits(checksum))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors (on the CPU) and description of a file written by `save_tensors`. RunError for a file that is absent,
    damaged (one bit is enough), or not of this kind."""
    with _opened(path) as file:
        found = file.metadata() or {}
        if KEY in found and found.keys() != {
            KEY
        }:  # files without a checksum were written by early versions
            _check(path, found)
        return {name: file.get_tensor(name) for name in file.keys()}, _description(path, file)  # noqa: SIM118


def read_header(path: Path) -> tuple[Shapes, dict[str, Any]]:
    """Names, sizes and types of a file's tensors, and its description; no tensor is read. Errors as `load_tensors`."""
    with _opened(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        shapes = {name: (part.get_shape(), part.get_dtype()) for name, part in slices.items()}
        return shapes, _description(path, file)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file with a header of at most 16 MiB; what fails while it is open is a RunError."""
    try:
        check_regular(path)
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
        if size > MOST_HEADER:
            raise ValueError(f"expected a header of at most {MOST_HEADER} bytes, got {size}")
        with safe_open(path, framework="pt") as tensors:
            yield tensors
    except RecursionError as error:
        raise RunError(
            f"{path}: is no readable checkpoint (its description is nested too deep)"
        ) from error
    except (OSError, SafetensorError, ValueError) as error:
        raise RunError(f"{path}: is no readable checkpoint ({one_line(str(error))})") from error


def _description(path: Path, file: Any) -> dict[str, Any]:
    about = json.loads((file.metadata() or {}).get(KEY, "null"))
    if not isinstance(about, dict):
        raise RunError(f"{path}: was not written by torchcaps (its header says nothing of a model)")
    return about


def as_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, not copied."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def _header(tensors: dict[str, Tensor], about: dict[str, Any]) -> bytes:
    """The header of a safetensors file, its own length in front, with zeros for the checksum."""
    told, end = {_CHECKSUM: "0" * _DIGITS, KEY: json.dumps(about, sort_keys=True)}, 0
    entries: dict[str, Any] = {"__metadata__": told}
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise TrainingError(f"{name}: a checkpoint holds no tensors of {tensor.dtype}")
        begin, end = end, end + tensor.nbytes
        entries[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": [*tensor.shape],
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _check(path: Path, found: dict[str, str]) -> None:
    """Raise ValueError unless the checksum is that of the file."""
    with open(path, "rb") as file:
        front, stored = file.read(_PLACE), file.read(_DIGITS)
        checksum = zlib.crc32(front)
        while chunk := file.read(2**20):
            checksum = zlib.crc32(chunk, checksum)
    if not (
        found.keys() == {KEY, _CHECKSUM} and front.endswith(_FRONT) and stored == _digits(checksum)
    ):
        raise ValueError("its content does not match its checksum")


def _digits(checksum: int) -> bytes:
    return f"{checksum:0{_DIGITS}x}".encode()


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
    """A fresh model of this description, with `.classes` (names), `.preprocess` (what `predict` applies).
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
    task = about.get("task", spec_of(model).task)
    set_model_metadata(model, ModelMetadata(tuple(about["classes"]), preprocess, task))
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
    for what, names in (
        ("missing", state.keys() - shapes.keys()),
        ("unexpected", shapes.keys() - state.keys()),
    ):
        if names:
            raise ValueError(f"{what} weights: {', '.join(sorted(names)[:3])}")
    for name, tensor in state.items():
        sizes, kind = shapes[name]
        shared = sizes == [1] and name.endswith(COSTS)
        if sizes != list(tensor.shape) and not shared:
            raise ValueError(
                f"size mismatch for {name}: {sizes} in the file, {list(tensor.shape)} by its description"
            )
        if kind.startswith(("F", "BF")) != tensor.is_floating_point():
            raise ArgumentError(name, f"expected {tensor.dtype}, got {kind}")


def check_numbers(state: dict[str, Tensor]) -> None:
    """Raise ValueError unless every number of a model's state is finite."""
    for name, tensor in state.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name} holds infinite numbers or NaN")


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
    if "kind" in about:  # an early version wrote it
        preprocess = {"img_size": about["img_size"], "in_chans": about["in_chans"], "crop": None}
        about = {
            "model": about["kind"],
            "options": about["options"],
            "classes": [],
            "preprocess": preprocess,
        }
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

"""Checkpoints: one safetensors file whose metadata is JSON.

Nothing in it is code; writing is atomic.

The metadata holds a description, the number of the format, and a checksum (CRC-32) of all of it.
"""

import json
import zlib
from collections.abc import Iterator, Mapping
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
from torchcaps.training.files import atomic
from torchcaps.types import model_metadata, set_model_metadata, spec_of

FORMAT = 1  # of run folders and checkpoints; another one is refused
MODEL_FILE = "model.safetensors"
LAST_FILE = "last.safetensors"
PREVIOUS_FILE = "previous.safetensors"
METADATA_KEY = "torchcaps"
MAX_HEADER_BYTES = 16 << 20  # names of a hundred thousand classes take a fifth of it


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

    Equal content gives equal bytes.

    Args:
        path: of the file.
        tensors: by name, on any device.
        description: beside them.
        previous: where the file that is replaced goes.

    Raises:
        TrainingError: a type of tensor that a checkpoint does not hold, or the file cannot be
            written.
    """
    # Tensors that share memory are stored one by one.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    content = {"format": FORMAT, **description}
    content["crc32"] = checksum(copies, content)
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
        if content.pop("crc32", None) != checksum(tensors, content):
            raise ValueError("its content does not match its checksum")
        del content["format"]
        return tensors, content


def read_header(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A file's tensors on the meta device, and its description; no tensor is read.

    Of a tensor's type only the kind is that of the file: floating point or whole numbers. Errors as
    `load_tensors`, but for damage outside of the header.
    """
    tensors = {}
    with _opened(path) as file:
        for name in file.keys():  # noqa: SIM118
            part = file.get_slice(name)
            is_floating = part.get_dtype().startswith(("F", "BF"))
            dtype = torch.float32 if is_floating else torch.int64
            tensors[name] = torch.empty(part.get_shape(), dtype=dtype, device="meta")
        return tensors, _read_content(path, file)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file with a header of at most 16 MiB.

    What fails while it is open is a RunError.
    """
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


def checksum(tensors: dict[str, Tensor], content: dict[str, Any] | None = None) -> int:
    """CRC-32 of tensors and of `content`, which is JSON-ready.

    Names, types, sizes and bytes of the tensors count; they are contiguous, and on the CPU.
    """
    crc = zlib.crc32(json.dumps(content, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {tensor.dtype} {[*tensor.shape]}".encode(), crc)
        content_bytes = tensor.detach().reshape(-1).view(torch.uint8)
        crc = zlib.crc32(content_bytes.numpy().data, crc)
    return crc


def describe_model(
    name: str,
    options: dict[str, Any],
    classes: tuple[str, ...],
    preprocess: Preprocess,
    task: str = "classify",
) -> dict[str, Any]:
    """Description of a model in its checkpoint: all that `load` needs.

    Args:
        name: of a registered model.
        options: that it was built with, without sizes.
        classes: their names.
        preprocess: what `predict` applies to a picture.
        task: name of the task it was trained for.
    """
    model = {"model": name, "options": options, "task": task}
    return model | {"classes": list(classes), "preprocess": preprocess.to_dict()}


def build_model(description: dict[str, Any], generator: torch.Generator | None = None) -> nn.Module:
    """A fresh model of a description.

    It has `.classes` (names), `.preprocess` (what `predict` applies) and `.task`.

    Args:
        description: as `describe_model` gives it.
        generator: draws the weights; None is torch's own.

    Raises:
        OptionError: an option that the model does not take.
        ValueError: sizes or values that the model refuses.
        KeyError: a description without one of its parts.
        DataError: a preprocessing that is none.
    """
    for key, kind in (("model", str), ("options", dict), ("classes", list)):
        if not isinstance(description[key], kind):
            problem = f"expected {kind.__name__}, got {one_line(repr(description[key]))}"
            raise ArgumentError(key, problem)
    name = description["model"]
    options = description["options"]
    classes = tuple(map(str, description["classes"]))
    preprocess = Preprocess.from_dict(description["preprocess"])
    sizes: dict[str, Any] = {"in_chans": preprocess.in_chans, "img_size": preprocess.model_size}
    if model_info(name).named:
        sizes["classes"] = classes
    sizes["num_classes"] = len(classes)
    try:
        model = create_model(name, generator=generator, **sizes, **options)
    except TypeError as error:
        wording = ", ".join(f"{option}={value!r}" for option, value in options.items())
        reason = str(error).splitlines()[0]
        raise OptionError(f"{name} takes no {wording} ({reason})") from error
    metadata = replace(
        model_metadata(model),
        classes=classes,
        preprocess=preprocess,
        task=description.get("task", spec_of(model).task),
    )
    set_model_metadata(model, metadata)
    return model


def check_fit(tensors: Mapping[str, Tensor], model: nn.Module) -> None:
    """Raise ValueError unless tensors are those of a model's state: names, sizes, kinds of number.

    Both may be on the meta device.
    """
    state = model.state_dict()
    missing = sorted(state.keys() - tensors.keys())
    unexpected = sorted(tensors.keys() - state.keys())
    if missing:
        raise ValueError(f"missing weights: {', '.join(missing[:3])}")
    if unexpected:
        raise ValueError(f"unexpected weights: {', '.join(unexpected[:3])}")
    for name, expected in state.items():
        tensor = tensors[name]
        if tensor.shape != expected.shape:
            raise ValueError(
                f"size mismatch for {name}: {list(tensor.shape)} in the file, "
                f"{list(expected.shape)} by its description"
            )
        if tensor.is_floating_point() != expected.is_floating_point():
            raise ArgumentError(name, f"expected {expected.dtype}, got {tensor.dtype}")


def check_numbers(state: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless every number of a model's state is finite."""
    for name, tensor in state.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{name} holds infinite numbers or NaN")


def save(model: nn.Module, path: str | Path) -> Path:
    """Write a model as one file, which `load` reads back with its classes and preprocessing.

    Args:
        model: built by `create_model` or `load`, trained or not.
        path: of the file; its ending is `.safetensors`.

    Returns:
        The path.

    Raises:
        ArgumentError: for another ending, or a model that was not built so, or was changed since.
        TrainingError: when the file cannot be written.
    """
    path = Path(path)
    metadata = model_metadata(model)
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
    numbers = map(str, range(options.pop("num_classes", 0)))
    options.pop("classes", None)
    description = describe_model(
        metadata.name,
        options,
        metadata.classes or tuple(numbers),
        metadata.preprocess or preprocess,
        spec_of(model).task if metadata.task == "auto" else metadata.task,
    )
    try:
        with torch.device("meta"):
            check_fit(model.state_dict(), build_model(description))
    except (ValueError, TypeError) as error:
        raise ArgumentError("model", f"cannot be built again for `load` ({error})") from error
    save_tensors(path, model.state_dict(), description)
    return path


def load(checkpoint_or_run_folder: str | Path, *, device: str | torch.device = "cpu") -> nn.Module:
    """A trained model in evaluation mode, on this device.

    The model has `.classes` (names) and `.preprocess` (path, picture or array ->
    `[channels, height, width]`).

    Args:
        checkpoint_or_run_folder: a `.safetensors` file; of a run folder, the best model by
            validation is taken.
        device: of the model.

    Returns:
        The model on `device`, in evaluation mode.

    Raises:
        RunError: the path is absent, damaged, or holds no model.

    Example:
        >>> model = tc.load("runs/capsnet-digits")
    """
    path = Path(checkpoint_or_run_folder)
    if not path.exists():
        raise RunError(f"{path}: no such run folder or model file")
    if path.is_dir():
        path = path / MODEL_FILE
        if not path.exists():
            raise RunError(
                f"{path}: there is no trained model here; "
                "was training stopped before its first epoch ended?"
            )
    shapes, description = read_header(path)
    if "model" not in description:
        raise RunError(
            f"{path}: holds the state of a training, not a model; load {MODEL_FILE} of that run"
        )
    try:
        with torch.device("meta"):  # the tensors are compared before they or the model take memory
            check_fit(shapes, build_model(description))
        # Its weights are replaced below; the caller's generator is untouched.
        model = build_model(description, torch.Generator())
        model.load_state_dict(load_tensors(path)[0])
        check_numbers(model.state_dict())
    except RunError:
        raise
    except Exception as error:  # a builder can fail in any way at what another hand wrote
        reason = one_line(str(error))
        if isinstance(error, KeyError):
            reason = f"{error} is missing"
        raise RunError(f"{path}: its weights do not fit the model it names ({reason})") from error
    return model.to(device).eval()

"""Checkpoints: one safetensors file whose metadata is JSON.

Nothing in it is code; writing is atomic.

The metadata holds a description, the number of the format, and a checksum (CRC-32) of all of it.
"""

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize
from torch import Tensor, nn

from torchcaps.data import Preprocess
from torchcaps.data.pixels import size_pair
from torchcaps.errors import (
    ArgumentError,
    RunError,
    TrainingError,
    check_range,
    check_regular,
    one_line,
)
from torchcaps.models import model_info
from torchcaps.models._pretrained import take_weights
from torchcaps.models._registry import construct_model
from torchcaps.nn import use_generator
from torchcaps.training.builders import (
    Builder,
    build_by,
    builder_name,
    find_builder,
    is_builder_name,
)
from torchcaps.training.files import CONFIG_FILE, atomic, make_folder
from torchcaps.types import (
    ModelMetadata,
    ModelSpec,
    model_metadata,
    set_model_metadata,
    spec_of,
)

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
    copies: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        copy = tensor.detach().cpu().contiguous()
        storage = copy.untyped_storage().data_ptr()
        # Tensors that share memory are stored one by one.
        copies[name] = copy.clone() if storage in storages else copy
        storages.add(storage)
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


def saved_options(model: nn.Module) -> dict[str, Any]:
    """The options that build a model again, without its sizes; see `create_model`."""
    options = dict(model_metadata(model).options)
    for size in ("num_classes", "in_chans", "img_size", "classes"):
        options.pop(size, None)
    return options


def build_model(
    description: dict[str, Any],
    generator: torch.Generator | None = None,
    builder: Builder | None = None,
    device: torch.device | None = None,
) -> nn.Module:
    """A fresh model of a description.

    It has `.classes` (names), `.preprocess` (what `predict` applies) and `.task`.

    Args:
        description: as `describe_model` gives it, or `save` of a model of the user's own.
        generator: draws the weights; None is torch's own.
        builder: of a model that the description names by a function; see `find_builder`.
        device: whose memory a registered model has to fit with its training; None checks nothing.

    Raises:
        OptionError: an option that the model does not take.
        ValueError: sizes or values that the model refuses, or a model that does not fit.
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
    preprocess = None
    if builder is None or description["preprocess"] is not None:
        preprocess = Preprocess.from_dict(description["preprocess"])
    try:
        with nullcontext() if generator is None else use_generator(generator):
            if builder is not None:
                model = build_by(builder, options)
            else:
                sizes = _model_sizes(name, classes, preprocess)
                model = construct_model(name, sizes, options, device)
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
    if builder is not None:
        metadata = replace(metadata, spec=_read_spec(description), builder=builder, options=options)
    set_model_metadata(model, metadata)
    return model


def _model_sizes(name: str, classes: tuple[str, ...], preprocess: Any) -> dict[str, Any]:
    """Arguments of `create_model` for these classes and what preprocessing makes."""
    sizes = {"in_chans": preprocess.in_chans, "img_size": preprocess.model_size}
    if model_info(name).named:
        sizes["classes"] = classes
    sizes["num_classes"] = len(classes)
    return sizes


def _read_spec(description: Mapping[str, Any]) -> ModelSpec | None:
    """The specification in a description, if any; ValueError for a value of another type."""
    if description.get("spec") is None:
        return None
    spec = ModelSpec(**description["spec"])
    for field, default in vars(ModelSpec()).items():
        value = getattr(spec, field)
        if type(value) is not type(default):
            raise ValueError(f"spec: {field}: expected {type(default).__name__}, got {value!r}")
    return spec


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


def save(
    model: nn.Module,
    path: str | Path,
    *,
    builder: Builder | None = None,
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model, which `load` reads back with its classes and preprocessing.

    Args:
        model: built by `create_model` or `load`, trained or not; or any module with its `builder`.
        path: of a folder, which is made where it is missing; or of a file whose ending is
            `.safetensors`.
        builder: the function or class that builds a module of your own, at the top level of a
            module that another process can import. The file holds its name, never its code.
        options: of the builder by name, plain values that JSON has.

    Returns:
        The path.

    Raises:
        ArgumentError: for a model without a builder, one that was changed since it was built, a
            builder that has no name, or options that are no JSON.
        RunError: the path is the folder of a run, or the folder cannot be made.
        TrainingError: when the file cannot be written.

    Example:
        >>> tc.save(model, "models/cats")
        >>> tc.save(my_model, "models/mine", builder=MyNetwork, options={"num_classes": 4})
    """
    path = Path(path)
    file = path if path.suffix == ".safetensors" else path / MODEL_FILE
    if (file.parent / CONFIG_FILE).exists() and file.name == MODEL_FILE:
        raise RunError(f"{path}: is the folder of a run; name another path")
    metadata = model_metadata(model)
    if builder is not None:
        metadata = replace(metadata, builder=builder, options=options or {})
    elif options is not None:
        raise ArgumentError("options", "expected a builder beside them, got none")

    description = _describe(model, metadata)
    try:
        if metadata.builder is None:
            with torch.device("meta"):
                copy = build_model(description)
        else:
            copy = build_model(description, torch.Generator(), metadata.builder)
        check_fit(model.state_dict(), copy)
    except (ValueError, TypeError) as error:
        raise ArgumentError("model", f"cannot be built again for `load` ({error})") from error
    make_folder(file.parent)
    save_tensors(file, model.state_dict(), description)
    return path


def _describe(model: nn.Module, metadata: ModelMetadata) -> dict[str, Any]:
    """The description of a model, from what is known of how it was built."""
    options = dict(metadata.options)
    preprocess = metadata.preprocess
    classes = metadata.classes
    if metadata.builder is not None:
        name = builder_name(metadata.builder)
        if not isinstance(preprocess, Preprocess):
            preprocess = None
    elif metadata.name:
        name = metadata.name
        sizes = Preprocess(size_pair(options.pop("img_size")), options.pop("in_chans"))
        preprocess = preprocess or sizes
        # Classes beyond those of the data that a model was fitted to are named by their numbers.
        numbers = range(len(classes), options.pop("num_classes", 0))
        classes = (*classes, *map(str, numbers))
        options.pop("classes", None)
    else:
        raise ArgumentError(
            "model",
            f"expected one that create_model or load has built, got {type(model).__name__}; "
            "give the function that builds it: save(model, path, builder=..., options={...})",
        )
    task = spec_of(model).task if metadata.task == "auto" else metadata.task
    description = {
        "model": name,
        "options": _plain_options(options),
        "task": task,
        "classes": list(classes),
        "preprocess": preprocess and preprocess.to_dict(),
    }
    if metadata.builder is not None and metadata.spec is not None:
        description["spec"] = asdict(metadata.spec)
    layout = _channels_last_names(model)
    if layout:
        description["channels_last"] = layout
    return description


def _plain_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options as a file holds them; ArgumentError where it cannot."""
    try:
        return dict(json.loads(json.dumps(options, allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            "options", f"expected plain values that a file can hold ({one_line(str(error))})"
        ) from error


def load(
    checkpoint_or_run_folder: str | Path,
    num_classes: int | None = None,
    *,
    builder: Builder | None = None,
    device: str | torch.device = "cpu",
) -> nn.Module:
    """A trained model in evaluation mode, on this device.

    The model has `.classes` (names) and `.preprocess` (path, picture or array ->
    `[channels, height, width]`).

    Args:
        checkpoint_or_run_folder: a `.safetensors` file, or a folder that `save` has written; of a
            run folder, the best model by validation is taken.
        num_classes: of the model, by default that of the file. With another one, the layers that
            depend on it start anew, and the classes are named by their numbers. A builder of your
            own needs an option of this name.
        builder: the function that the file names, of a model that was saved with one. A file never
            causes an import or a call by itself.
        device: of the model.

    Returns:
        The model on `device`, in evaluation mode.

    Raises:
        RunError: the path is absent, damaged, holds no model, or names a builder that was neither
            given nor imported by `--import`.
        ArgumentError: a `num_classes` that the model does not take.

    Example:
        >>> model = tc.load("runs/capsnet-digits")
        >>> new_model = tc.load("runs/capsnet-digits", num_classes=4)
    """
    path = model_file(Path(checkpoint_or_run_folder))
    shapes, description = read_header(path)
    if "model" not in description:
        raise RunError(
            f"{path}: holds the state of a training, not a model; load {MODEL_FILE} of that run"
        )
    if not is_builder_name(str(description["model"])):
        builder = None
    elif builder is None:
        builder = find_builder(path, description["model"])
    model = _load_model(path, shapes, description, builder)
    if num_classes is not None:
        model = _with_classes(model, num_classes, description)
    return model.to(device).eval()


def model_file(path: Path) -> Path:
    """The file of a model at a path, which may be that of its folder; RunError for none."""
    if not path.exists():
        raise RunError(f"{path}: no such run folder or model file")
    if not path.is_dir():
        return path
    path = path / MODEL_FILE
    if not path.exists():
        raise RunError(
            f"{path}: there is no trained model here; "
            "was training stopped before its first epoch ended?"
        )
    return path


def _load_model(
    path: Path,
    shapes: Mapping[str, Tensor],
    description: dict[str, Any],
    builder: Builder | None,
) -> nn.Module:
    """The model of a file with this header; RunError where the two do not fit."""
    try:
        if builder is None:
            with torch.device("meta"):  # compared before the tensors or the model take memory
                check_fit(shapes, build_model(description))
        # Its weights are replaced below; the caller's generator is untouched.
        model = build_model(description, torch.Generator(), builder)
        check_fit(shapes, model)
        model.load_state_dict(load_tensors(path)[0])
        check_numbers(model.state_dict())
        _set_channels_last(model, description.get("channels_last", []))
    except RunError:
        raise
    except Exception as error:  # a builder can fail in any way at what another hand wrote
        reason = one_line(str(error))
        if isinstance(error, KeyError):
            reason = f"{error} is missing"
        raise RunError(f"{path}: its weights do not fit the model it names ({reason})") from error
    return model


def _with_classes(model: nn.Module, num_classes: int, description: dict[str, Any]) -> nn.Module:
    """A model for this number of classes, with those weights that do not depend on it."""
    check_range("num_classes", num_classes, low=1)
    builder = model_metadata(model).builder
    options = description["options"]
    if builder is None:
        current_number = len(description["classes"])
        takes_classes = model_info(description["model"]).num_classes > 0
    else:
        current_number = options.get("num_classes")
        takes_classes = "num_classes" in options
        options = options | {"num_classes": num_classes}
    if not takes_classes:
        raise ArgumentError("num_classes", f"{description['model']} has no such option")
    if num_classes == current_number:
        return model

    numbers = [str(number) for number in range(num_classes)]
    changes = {"classes": numbers, "options": options}
    resized = build_model(description | changes, builder=builder)
    take_weights(resized, model.state_dict())
    _set_channels_last(resized, _channels_last_names(model))
    return resized


def _channels_last_names(model: nn.Module) -> list[str]:
    """Weights that lie in channels-last order, in which training leaves convolutions.

    The order decides how a convolution is computed, and so the last bits of the outputs.
    """
    names = []
    for name, weight in model.state_dict().items():
        if weight.dim() == 4:
            # Of one channel, a weight counts as contiguous in both orders; strides tell them apart.
            ordinary = torch.empty(weight.shape, device="meta")
            channels_last = ordinary.clone(memory_format=torch.channels_last)
            if weight.stride() == channels_last.stride() != ordinary.stride():
                names.append(name)
    return names


def _set_channels_last(model: nn.Module, names: Iterable[str]) -> None:
    """Lay these weights of four axes in channels-last order."""
    names = set(names)
    for name, weight in model.state_dict(keep_vars=True).items():
        if name in names:
            weight.data = weight.data.clone(memory_format=torch.channels_last)

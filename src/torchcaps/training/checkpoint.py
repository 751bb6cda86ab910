"""Models as files: a description of how each is built, and its weights.

A file may name a function of a user that builds a model, but never causes an import or a call by
itself: whoever loads the file passes the function, or has imported its module by `--import`.
"""

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchcaps import plugins
from torchcaps.data import Preprocess
from torchcaps.data.pixels import size_pair
from torchcaps.errors import ArgumentError, RunError, UnknownNameError, check_range, one_line
from torchcaps.models import model_info
from torchcaps.models._pretrained import take_weights
from torchcaps.models._registry import OptionError as OptionError, construct_model, option_error
from torchcaps.nn import use_generator
from torchcaps.nn.generator import on_meta
from torchcaps.training.files import (
    CONFIG_FILE,
    MODEL_FILE,
    load_tensors,
    make_folder,
    read_header,
    save_tensors,
)
from torchcaps.types import (
    Json,
    ModelMetadata,
    ModelSpec,
    Names,
    StrPath,
    WrappedNetwork,
    find_network,
    model_metadata,
    output_names,
    set_model_metadata,
    spec_of,
    unwrap,
)

Builder = Callable[..., nn.Module]
HUB = "hf:"  # before the name of a repository
SEPARATOR = ":"  # between a module and what it defines, as in entry points


def describe_model(
    name: str,
    options: Mapping[str, Any],
    classes: Names,
    preprocess: Preprocess | None,
    task: str = "classify",
) -> Json:
    """Description of a model in its checkpoint: all that `load` needs.

    Args:
        name: of a registered model, or of the function that builds it.
        options: that it was built with, without sizes.
        classes: their names.
        preprocess: what `predict` applies to a picture.
        task: name of the task it was trained for.
    """
    return {
        "model": name,
        "options": options,
        "task": task,
        "classes": list(classes),
        "preprocess": preprocess and preprocess.to_dict(),
    }


def build_model(
    description: Json,
    generator: torch.Generator | None = None,
    builder: Builder | None = None,
    device: torch.device | None = None,
) -> nn.Module:
    """A fresh model of a description.

    It has `.classes` (names), `.preprocess` (what `predict` applies) and `.task`.

    Args:
        description: as `describe_model` gives it, or `save` of a model of the user's own.
        generator: draws the weights; None is torch's own.
        builder: of a model that the description names by a function; see `load`.
        device: whose memory a registered model has to fit with its training; None checks nothing.

    Raises:
        OptionError: an option that the model does not take.
        ValueError: sizes or values that the model refuses, or a model that does not fit.
        KeyError: a description without one of its parts.
        DataError: a preprocessing that is none.
    """
    for key, kind in (("model", str), ("options", dict), ("classes", list)):
        if not isinstance(description[key], kind):
            raise ArgumentError(
                key, f"expected {kind.__name__}, got {one_line(repr(description[key]))}"
            )
    name = description["model"]
    options = description["options"]
    classes = tuple(map(str, description["classes"]))
    preprocess = None
    if builder is None or description["preprocess"] is not None:
        preprocess = Preprocess.from_dict(description["preprocess"])
    try:
        with use_generator(generator) if generator else nullcontext():
            if builder:
                model = builder(**options)
            else:
                assert preprocess is not None
                sizes: Json = {
                    "num_classes": len(classes),
                    "in_chans": preprocess.in_chans,
                    "img_size": preprocess.model_size,
                }
                if "img_size" in options:
                    options = dict(options)
                    sizes["img_size"] = size_pair(options.pop("img_size"))
                if model_info(name).named:
                    sizes["classes"] = classes
                model = construct_model(name, sizes, options, device)
    except (TypeError, ArgumentError) as error:
        if isinstance(error, UnknownNameError | OptionError):
            raise
        if getattr(error, "argument", None) not in (None, *options):
            raise
        raise option_error(name, options, error) from error
    if not isinstance(model, nn.Module):
        raise TypeError(f"the builder returned a {type(model).__name__}, expected an nn.Module")
    changes: Json = {}
    if builder:
        changes = {"spec": _read_spec(description), "builder": builder, "options": options}
    set_model_metadata(
        model,
        classes=classes,
        preprocess=preprocess,
        task=description.get("task", spec_of(model).task),
        targets=description.get("targets", {}),
        calibration=description.get("calibration"),
        **changes,
    )
    return model


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
    for name in sorted(state.keys() ^ tensors.keys()):
        raise ValueError(f"{'missing' if name in state else 'unexpected'} weights: {name}")
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
    path: StrPath,
    *,
    builder: Builder | None = None,
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model, which `load` reads back with its classes and preprocessing.

    Args:
        model: built by `create_model` or `load`, trained or not; or any module with its `builder`.
            Of a network within other modules that change no images, such as `DataParallel`, the
            network alone is written.
        path: of a folder, which is made where it is missing; or of a file whose ending is
            `.safetensors`.
        builder: the function or class that builds a module of your own, at the top level of a
            module that another process can import. The file holds its name, never its code.
        options: of the builder by name, plain values that JSON has.

    Returns:
        The path.

    Raises:
        ArgumentError: for a model without a builder, one that was changed since it was built, one
            whose images another module changes, a builder that has no name, or options that are no
            JSON.
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
    model = find_network(model)
    metadata = model_metadata(model)
    if builder:
        metadata = replace(metadata, builder=builder, options=options or {})
    elif options is not None:
        raise ArgumentError("options", "expected a builder beside them, got none")

    if isinstance(model, WrappedNetwork):
        if metadata.builder:
            model = model.outer
        elif model.trial()[0]:
            model = model.entry
        else:
            raise ArgumentError(
                "model",
                "expected one that gives images to its network as they are, got "
                f"{type(model.outer).__name__}, which changes them before; give the function that "
                "builds the whole, save(model, path, builder=..., options={...}), or save "
                f"its part {model.path!r} alone",
            )
    model = unwrap(model)
    description = describe(model, metadata)
    try:
        if metadata.builder is None:
            with on_meta():
                copy = build_model(description)
        else:
            copy = build_model(description, torch.Generator(), metadata.builder)
        check_fit(model.state_dict(), copy)
    except (ValueError, TypeError) as error:
        raise ArgumentError("model", f"cannot be built again for `load` ({error})") from error
    make_folder(file.parent)
    save_tensors(file, model.state_dict(), description)
    return path


def describe(model: nn.Module, metadata: ModelMetadata | None = None) -> Json:
    """The description of a model, from what is known of how it was built.

    Args:
        model: built by `create_model` or `load`; or any module with its builder.
        metadata: what is known; by default that of the model.

    Raises:
        ArgumentError: nothing is known, a builder that has no name, or options that are no JSON.
    """
    metadata = metadata or model_metadata(model)
    options = metadata.options
    preprocess = metadata.preprocess
    classes = metadata.classes
    builder: Any = metadata.builder
    if builder:
        module = getattr(builder, "__module__", None)
        name = getattr(builder, "__qualname__", None)
        if not (module and name and _find(module, name) == builder):
            raise ArgumentError(
                "builder",
                "expected a function or class at the top level of a module, which another process "
                f"can import, got {name or type(builder).__name__}",
            )
        name = f"{module}{SEPARATOR}{name}"
        if not isinstance(preprocess, Preprocess):
            preprocess = None
    elif metadata.name:
        name = metadata.name
        preprocess = preprocess or Preprocess(size_pair(options["img_size"]), options["in_chans"])
        classes = output_names(classes, options.get("num_classes", 0))
        sizes = ["num_classes", "in_chans", "classes"]
        # Of a network of any size it is not that of the images.
        if size_pair(options["img_size"]) == preprocess.model_size:
            sizes.append("img_size")
        options = {key: option for key, option in options.items() if key not in sizes}
    else:
        raise ArgumentError(
            "model",
            f"expected one that create_model or load has built, got {type(model).__name__}; "
            "give the function that builds it: save(model, path, builder=..., options={...})",
        )
    try:
        options = json.loads(json.dumps(options, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            "options", f"expected plain values that a file can hold ({one_line(str(error))})"
        ) from error
    task = spec_of(model).task if metadata.task == "auto" else metadata.task
    description = describe_model(name, options, classes, preprocess, task)
    if metadata.targets:
        description["targets"] = metadata.targets
    if builder and metadata.spec:
        description["spec"] = asdict(metadata.spec)
    if metadata.calibration:
        description["calibration"] = dict(metadata.calibration)
    return description


def load(
    checkpoint_or_run_folder: StrPath,
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
            run folder, the best model by validation is taken. "hf:OWNER/NAME", or
            "hf:OWNER/NAME@REVISION", is fetched by huggingface_hub.
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
    path = model_file(local_path(checkpoint_or_run_folder))
    shapes, description = read_header(path)
    if "model" not in description:
        raise RunError(
            f"{path}: holds the state of a training, not a model; load {MODEL_FILE} of that run"
        )
    if SEPARATOR not in str(description["model"]):
        builder = None
    elif builder is None:
        # Of a module that was imported by `--import`, what the module itself defines.
        module, _, function = description["model"].partition(SEPARATOR)
        # Names of modules, and paths of files.
        imported = [Path(name).name.removesuffix(".py") for name in plugins.imported()]
        if module in imported and not any(part.startswith("_") for part in function.split(".")):
            builder = _find(module, function)
        if not (callable(builder) and getattr(builder, "__module__", None) == module):
            raise RunError(
                f"{path}: was built by {description['model']}, and a file never runs code by itself; "
                "if you trust it, pass that function to load(..., builder=...), or import its module "
                f"with --import {module}"
            )
    try:
        if builder is None:
            with on_meta():  # compared before the tensors or the model take memory
                model = build_model(description)
            check_fit(shapes, model)
        if builder or not _is_in_state(model):
            # Its weights are replaced below; the caller's generator is untouched.
            model = build_model(description, torch.Generator(), builder)
            check_fit(shapes, model)
        tensors, _ = load_tensors(path)
        state = {  # in the types and the order of the tensors of the model
            name: tensors[name].to(tensor.dtype, copy=True)
            for name, tensor in model.state_dict().items()
        }
        model.load_state_dict(state, assign=True)
        check_numbers(model.state_dict())
    except RunError:
        raise
    except Exception as error:  # a builder can fail in any way at what another hand wrote
        reason = f"{error} is missing" if isinstance(error, KeyError) else one_line(str(error))
        raise RunError(f"{path}: its weights do not fit the model it names ({reason})") from error
    if num_classes is not None:
        model = _with_classes(model, num_classes, description)
    return model.to(device).eval()


def local_path(path: str | PathLike[str]) -> Path:
    """A path as it is; of "hf:OWNER/NAME@REVISION" that of the folder which huggingface_hub keeps.

    Raises RunError where it cannot be fetched.
    """
    text = Path(path).as_posix()
    if not text.startswith(HUB):
        return Path(path)
    repository, _, revision = text.removeprefix(HUB).partition("@")
    # Its errors, and those of the network, are of many types.
    try:
        from huggingface_hub import snapshot_download

        folder = snapshot_download(
            repository, revision=revision or None, allow_patterns=["*.json", "*.safetensors"]
        )
    except ImportError:
        raise RunError(
            f"{text}: needs huggingface_hub; install with: pip install 'torchcaps[hub]'"
        ) from None
    except Exception as error:
        raise RunError(f"{text}: cannot be fetched ({one_line(str(error))})") from error
    return Path(folder)


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


def _is_in_state(model: nn.Module) -> bool:
    """Whether the state of a model holds each of its tensors, once: it has no others."""
    state = model.state_dict(keep_vars=True)
    saved = set(map(id, state.values()))
    for module in model.modules():
        for value in (*vars(module).values(), *module._buffers.values()):
            if isinstance(value, Tensor) and id(value) not in saved:
                return False
    return len(saved) == len(state)


def _with_classes(model: nn.Module, num_classes: int, description: Json) -> nn.Module:
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

    changes = {"classes": list(range(num_classes)), "options": options, "calibration": None}
    resized = build_model(description | changes, builder=builder)
    take_weights(resized, model.state_dict())
    return resized


def _find(module: str, name: str) -> Any:
    """What a module that is imported already holds under a dotted name; None for nothing."""
    member: Any = sys.modules.get(module)
    for part in name.split("."):
        member = getattr(member, part, None)
    return member

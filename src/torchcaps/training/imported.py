"""Weights that others have published, as model files of this library; nothing in their files is run.

A source is known by the shapes of its tensors in their order: Keras numbers its layers anew in every session.
"""

from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchcaps.data import Preprocess
from torchcaps.errors import RunError, TorchcapsError, check_regular, one_line
from torchcaps.models.published import LAYOUTS, Layout, Sizes
from torchcaps.training.checkpoint import (
    build_model,
    check_fit,
    check_numbers,
    describe_model,
    save_tensors,
)

HDF5 = b"\x89HDF\r\n\x1a\n"
MOST = 1 << 28  # numbers in a file: 1 GiB


def import_weights(path: str | Path, output: str | Path | None = None) -> tuple[Path, str]:
    """Write the model file of published weights, which `torchcaps.load` takes: the file, and whose weights they are.
    Its classes are named by their numbers.

    Args:
        path: an HDF5 file of Keras' `save_weights`, or a `state_dict` that PyTorch has saved.
        output: the file; by default `path` with the ending `.safetensors`.

    Raises:
        RunError: for a file that cannot be read without running its code, or whose tensors are those of no known
            source; or where the file to write is there already. TrainingError: it cannot be written.
    """
    path = Path(path)
    output = path.with_suffix(".safetensors") if output is None else Path(output)
    if output.exists():
        raise RunError(f"{output}: is there already; name another --output")
    layout, sizes, tensors = _recognized(path)
    try:
        name, classes, channels, side, options = layout.describe(sizes)
        names = tuple(map(str, range(classes)))
        about = describe_model(
            name, options, names, Preprocess(img_size=(side, side), in_chans=channels)
        )
        state = _state(layout, sizes, list(tensors.values()))
        with torch.device("meta"):
            bare = build_model(about)
        counters = (name for name in bare.state_dict() if name.endswith(".num_batches_tracked"))
        state = {
            name: torch.zeros((), dtype=torch.int64) for name in counters
        } | state  # Keras does not count
        check_fit(
            {k: ([*x.shape], "F32" if x.is_floating_point() else "I64") for k, x in state.items()},
            bare,
        )
        check_numbers(state)
    except (ValueError, TorchcapsError) as error:
        raise RunError(
            f"{path}: its tensors do not fit together, taken for {layout.source} ({error})"
        ) from error
    save_tensors(output, state, about)
    return output, layout.source


def _recognized(path: Path) -> tuple[Layout, Sizes, dict[str, Tensor]]:
    """The source of a file, its sizes, and its tensors by their names there."""
    try:
        check_regular(path)
        with open(path, "rb") as file:
            front = file.read(len(HDF5))
        tensors = _read_keras(path) if front == HDF5 else _read_state(path)
    except OSError as error:
        raise RunError(
            f"{path}: cannot be read ({error.strerror or one_line(str(error))})"
        ) from error
    for tensor in tensors.values():
        if 0 in tensor.shape:
            raise RunError(
                f"{path}: expected tensors with numbers in them, got one of {list(tensor.shape)}"
            )
    fits = [(*_fit(layout, tensors), layout) for layout in LAYOUTS]
    good, sizes, wrong, layout = max(fits, key=lambda fit: (fit[2] == "", fit[0]))
    if not good:
        known = ", ".join(layout.source for layout in LAYOUTS)
        raise RunError(f"{path}: holds the weights of no known source ({wrong}); known: {known}")
    if wrong:
        raise RunError(f"{path}: {wrong} (taken for {layout.source})")
    return layout, sizes, tensors


def _fit(layout: Layout, tensors: dict[str, Tensor]) -> tuple[int, Sizes, str]:
    """How many tensors, from the first, are those of a source; its sizes; and what is wrong with the next, or ""."""
    sizes: Sizes = {}
    found = list(tensors.items())
    for number, entry in enumerate(layout.entries):
        want = ", ".join(f"{axis}={sizes[axis]}" if axis in sizes else axis for axis in entry.axes)
        if number == len(found):
            return number, sizes, f"expected one more tensor [{want}], for {entry.target}"
        name, shape = found[number][0], found[number][1].shape
        numbers = [int(axis) if axis.isdigit() else sizes.get(axis) for axis in entry.axes]
        if len(shape) != len(numbers) or any(
            n not in (None, m) for n, m in zip(numbers, shape, strict=True)
        ):
            return (
                number,
                sizes,
                f"{name}: expected [{want}], for {entry.target}, got {list(shape)}",
            )
        sizes |= {axis: n for axis, n in zip(entry.axes, shape, strict=True) if not axis.isdigit()}
    extra = list(tensors)[len(layout.entries) :]
    return len(layout.entries), sizes, f"{extra[0]}: expected no more tensors" if extra else ""


def _state(layout: Layout, sizes: Sizes, tensors: list[Tensor]) -> dict[str, Tensor]:
    """The state of our model."""
    parts: dict[str, list[Tensor]] = {}
    for entry, tensor in zip(layout.entries, tensors, strict=True):
        parts.setdefault(entry.target, []).append(_turned(tensor, entry.turn, sizes))
    # Of several convolutions, each makes one dimension of every type's capsule.
    return {
        name: torch.stack(some, dim=1).flatten(0, 1) if some[1:] else some[0]
        for name, some in parts.items()
    }


def _turned(x: Tensor, turn: str, sizes: Sizes) -> Tensor:
    match turn:
        case "" | "each":
            return x
        case "prior":  # [parents, children, 1]
            return x[..., 0].T
        case "types":  # children type after type, to position after position
            return (
                x.permute(1, 0, 3, 2).unflatten(0, (sizes["t"], -1)).transpose(0, 1).flatten(0, 1)
            )
        case "drawn":  # pixels with their channels last, to one channel after another
            x = x.T if x.dim() == 2 else x
            return x.unflatten(0, (-1, sizes["c"])).transpose(0, 1).flatten(0, 1)
        case _:
            return x.permute(*map(int, turn))


def _read_keras(path: Path) -> dict[str, Tensor]:
    try:
        import h5py
    except ImportError:
        how = "install it with: pip install 'torchcaps[h5]'"
        raise RunError(f"{path}: reading Keras' weights needs h5py; {how}") from None
    try:
        with h5py.File(path, "r") as file:
            root, found = file.get("model_weights", file), {}
            for layer in map(_text, root.attrs["layer_names"]):
                for name in map(_text, root[layer].attrs["weight_names"]):
                    found[f"{layer}/{name}"] = root[layer][name]
            if sum(prod(part.shape) for part in found.values()) > MOST:
                raise ValueError(f"expected at most {MOST} numbers")
            return {
                name: torch.from_numpy(part.astype("float32")[()]) for name, part in found.items()
            }
    except (KeyError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        raise RunError(
            f"{path}: holds no readable weights of Keras ({one_line(str(error))})"
        ) from error


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _read_state(path: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # torch, pickle and zip fail in many ways at what another hand wrote
        reason = one_line(str(error).strip().partition("\n")[0])
        raise RunError(
            f"{path}: holds no weights that can be read without running code ({reason})"
        ) from error
    found = found.get("state_dict", found) if isinstance(found, dict) else found
    if not isinstance(found, dict) or not all(isinstance(x, Tensor) for x in found.values()):
        raise RunError(
            f"{path}: expected tensors by name, got {one_line(repr(type(found).__name__))}"
        )
    return {str(name): x.float() if x.is_floating_point() else x for name, x in found.items()}

"""Weights that others have published, as model files of this library; nothing in their files is run.

A file is read in a process of its own, which may take 2 GiB of memory and a minute.

A source is known by the shapes of its tensors in their order: Keras numbers its layers anew in every session.
"""

from pathlib import Path

import torch
from torch import Tensor

from torchcaps.data import Preprocess
from torchcaps.errors import RunError, TorchcapsError, check_regular
from torchcaps.isolated import IsolatedError, call_isolated
from torchcaps.models.published import LAYOUTS, Layout, Sizes
from torchcaps.training.checkpoint import (
    build_model,
    check_fit,
    check_numbers,
    describe_model,
    save_tensors,
    shapes_of,
)

MAX_BYTES = 2 << 30  # memory that reading a file may take
SECONDS = 60.0


def import_weights(path: str | Path, output: str | Path | None = None) -> tuple[Path, str]:
    """Write the model file of published weights, which `torchcaps.load` takes: the file, and whose weights they are.
    Its classes are named by their numbers.

    Args:
        path: an HDF5 file of Keras' `save_weights`, or a `state_dict` that PyTorch has saved.
        output: the file; by default `path` with the ending `.safetensors`.

    Raises:
        RunError: for a file that cannot be read without running its code, or within the limits, or whose tensors are
            those of no known source; or where the file to write is there already. TrainingError: it cannot be written.
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
        check_fit(shapes_of(state), bare)
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
        with open(path, "rb"):
            answer = call_isolated(
                "torchcaps.weight_files:read_tensors",
                str(path),
                max_bytes=MAX_BYTES,
                timeout=SECONDS,
            )
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from error
    except IsolatedError as error:
        raise RunError(f"{path}: cannot be read ({error})") from error
    if isinstance(answer, str):
        raise RunError(f"{path}: {answer}")
    tensors = {name: torch.from_numpy(array) for name, array in answer.items()}
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

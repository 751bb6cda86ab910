"""Weights that others have published, as model files of this library.

Nothing in their files is run: a file is read in a process of its own, which may take 2 GiB of
memory and a minute. A source is known by the shapes of its tensors in their order, since Keras
numbers its layers anew in every session.
"""

from pathlib import Path

import torch
from torch import Tensor

from torchcaps.data import Preprocess
from torchcaps.errors import RunError, TorchcapsError, check_regular
from torchcaps.isolated import IsolatedError, call_isolated
from torchcaps.models.published import LAYOUTS, Layout, Sizes
from torchcaps.nn.generator import on_meta
from torchcaps.training.checkpoint import build_model, check_fit, check_numbers, describe_model
from torchcaps.training.files import save_tensors
from torchcaps.types import StrPath, Tensors

MAX_BYTES = 2 << 30  # memory that reading a file may take
SECONDS = 60.0


def import_weights(path: StrPath, output: StrPath | None = None) -> tuple[Path, str]:
    """Write the model file of published weights, which `torchcaps.load` takes.

    Args:
        path: an HDF5 file of Keras' `save_weights`, or a `state_dict` that PyTorch has saved.
        output: the file; by default `path` with the ending `.safetensors`.

    Returns:
        The file, and whose weights they are. The classes are named by their numbers.

    Raises:
        RunError: the file cannot be read without running its code, or within the limits; its
            tensors are those of no known source; or the file to write is there already.
        TrainingError: the file cannot be written.
    """
    path = Path(path)
    output = path.with_suffix(".safetensors") if output is None else Path(output)
    if output.exists():
        raise RunError(f"{output}: is there already; name another --output")
    tensors = _read(path)
    faults = []
    for layout in LAYOUTS:
        try:
            sizes = _match(layout, tensors)
            break
        except ValueError as fault:
            faults.append(f"{layout.source}: {fault}")
    else:
        raise RunError(f"{path}: holds the weights of no known source ({'; '.join(faults)})")
    try:
        name, num_classes, channels, side, options = layout.describe(sizes)
        preprocess = Preprocess((side, side), channels)
        classes = tuple(map(str, range(num_classes)))
        description = describe_model(name, options, classes, preprocess)
        with on_meta():
            model = build_model(description)
        state = {
            key: torch.tensor(0)  # Keras does not count
            for key in model.state_dict()
            if key.endswith(".num_batches_tracked")
        }
        parts: dict[str, list[Tensor]] = {}
        for entry, tensor in zip(layout.entries, tensors.values(), strict=True):
            parts.setdefault(entry.target, []).append(_rearrange(tensor, entry.turn, sizes))
        for target, members in parts.items():
            # Of several convolutions, each makes one dimension of every type's capsule.
            state[target] = members[0]
            if len(members) > 1:
                state[target] = torch.stack(members, dim=1).flatten(0, 1)
        check_fit(state, model)
        check_numbers(state)
    except (ValueError, TorchcapsError) as error:
        raise RunError(
            f"{path}: its tensors do not fit together, taken for {layout.source} ({error})"
        ) from error
    save_tensors(output, state, description)
    return output, layout.source


def _read(path: Path) -> Tensors:
    """The tensors of a file by their names there."""
    try:
        check_regular(path)
        with open(path, "rb"):
            arrays = call_isolated(
                "torchcaps.weight_files:read_tensors",
                str(path),
                max_bytes=MAX_BYTES,
                timeout=SECONDS,
            )
    except (OSError, IsolatedError) as error:
        reason = getattr(error, "strerror", error)
        raise RunError(f"{path}: cannot be read ({reason})") from error
    if isinstance(arrays, str):  # what is wrong with the file
        raise RunError(f"{path}: {arrays}")
    for array in arrays.values():
        if 0 in array.shape:
            raise RunError(
                f"{path}: expected tensors with numbers in them, got one of {list(array.shape)}"
            )
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _match(layout: Layout, tensors: Tensors) -> Sizes:
    """The sizes of a source by their letters; ValueError for tensors of another one."""
    if len(tensors) != len(layout.entries):
        raise ValueError(f"expected {len(layout.entries)} tensors, got {len(tensors)}")
    sizes: Sizes = {}
    for entry, (name, tensor) in zip(layout.entries, tensors.items(), strict=True):
        axes = [str(sizes.get(axis, axis)) for axis in entry.axes]
        bound = dict(zip(axes, map(str, tensor.shape), strict=False))
        if len(axes) != tensor.dim() or any(
            axis.isdigit() and axis != size for axis, size in bound.items()
        ):
            expected = f"[{', '.join(axes)}], for {entry.target}"
            raise ValueError(f"{name}: expected {expected}, got {list(tensor.shape)}")
        sizes |= zip(entry.axes, tensor.shape, strict=True)
    return sizes


def _rearrange(x: Tensor, turn: str, sizes: Sizes) -> Tensor:
    """The axes of a tensor of a source, in the order of our model."""
    match turn:
        case "" | "each":
            return x
        case "prior":  # [parents, children, 1]
            return x[..., 0].T
        case "types":  # children type after type, to position after position
            by_type = x.permute(1, 0, 3, 2).unflatten(0, (sizes["t"], -1))
            return by_type.transpose(0, 1).flatten(0, 1)
        case "drawn":  # pixels with their channels last, to one channel after another
            x = x.T if x.dim() == 2 else x
            return x.unflatten(0, (-1, sizes["c"])).transpose(0, 1).flatten(0, 1)
        case _:
            return x.permute(*map(int, turn))

"""Tensors by name out of files that others wrote; nothing in them is run.

`read_tensors` is called in a process of its own, with limits of memory and time.
"""

from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.errors import one_line

HDF5 = b"\x89HDF\r\n\x1a\n"  # the first bytes of a file
MAX_NUMBERS = 1 << 26  # in a file: 256 MiB

Arrays = Iterator[tuple[str, np.ndarray]]


class UnreadableFileError(Exception):
    """The fault of a file, as the end of a sentence."""


def read_tensors(path: str) -> dict[str, np.ndarray] | str:
    """Read the tensors of an HDF5 file of Keras or of a `state_dict`.

    Args:
        path: of the file.

    Returns:
        The tensors by name, or what is wrong with the file, as the end of a sentence.
    """
    with open(path, "rb") as file:
        is_hdf5 = file.read(len(HDF5)) == HDF5
    try:
        return dict(read_keras(path) if is_hdf5 else read_state(path))
    except UnreadableFileError as error:
        return str(error)
    except MemoryError:
        raise
    except Exception as error:  # parsers raise anything on damaged bytes
        reason = one_line(str(error).strip().partition("\n")[0]) or type(error).__name__
        if is_hdf5:
            return f"holds no readable weights of Keras ({reason})"
        return f"holds no weights that can be read without running code ({reason})"


def read_state(path: str) -> Arrays:
    """Tensors of a `state_dict`, as arrays in float32 or of integers."""
    content = torch.load(path, map_location="cpu", weights_only=True)
    state = content.get("state_dict", content) if isinstance(content, dict) else content
    if not isinstance(state, dict) or not all(isinstance(x, Tensor) for x in state.values()):
        raise UnreadableFileError(f"expected tensors by name, got {type(state).__name__!r}")
    for name, x in state.items():
        if x.layout != torch.strided or x.is_nested or x.is_quantized or x.device.type != "cpu":
            raise UnreadableFileError(
                f"{one_line(str(name))}: expected a plain tensor, got another layout"
            )
    check_count(x.numel() for x in state.values())
    for name, x in state.items():
        if x.is_floating_point():
            x = x.float()
        yield str(name), x.contiguous().numpy()


def read_keras(path: str) -> Arrays:
    """Weights of a model of Keras by "layer/weight", as arrays in float32."""
    try:
        import h5py
    except ImportError:
        raise UnreadableFileError(
            "reading Keras' weights needs h5py; install it with: pip install 'torchcaps[h5]'"
        ) from None
    with h5py.File(path, "r") as file:
        root = hdf5_member(file, "model_weights") if "model_weights" in file else file
        datasets: dict[str, Any] = {}
        for layer in decode_names(root.attrs["layer_names"]):
            group = hdf5_member(root, layer)
            for name in decode_names(group.attrs["weight_names"]):
                dataset = hdf5_member(group, name)
                if dataset.is_virtual or dataset.external:
                    raise ValueError(f"{name} is kept in another file")
                datasets[f"{layer}/{name}"] = dataset
        check_count(prod(dataset.shape) for dataset in datasets.values())
        for name, dataset in datasets.items():
            yield name, dataset.astype("float32")[()]


def hdf5_member(group: Any, name: str) -> Any:
    """A member of a group of an HDF5 file, by its path.

    Raises:
        ValueError: where a part of the path is in another file.
    """
    import h5py

    for part in Path(name).parts:
        if not isinstance(group.get(part, getlink=True), h5py.HardLink):
            raise ValueError(f"{name} is a link")
        group = group[part]
    return group


def check_count(counts: Iterable[int]) -> None:
    """Raise UnreadableFileError for tensors of too many numbers together."""
    total = sum(counts)
    if total > MAX_NUMBERS:
        raise UnreadableFileError(f"expected at most {MAX_NUMBERS:,} numbers, got {total:,}")


def decode_names(names: Iterable[Any]) -> list[str]:
    """Names in an HDF5 file, which are bytes or text."""
    return [name.decode() if isinstance(name, bytes) else str(name) for name in names]

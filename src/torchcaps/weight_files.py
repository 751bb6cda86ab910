"""Tensors by name out of files that others wrote; nothing in them is run.

`read_tensors` is called in a process of its own, with limits of memory and time.
"""

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchcaps.errors import one_line

HDF5 = b"\x89HDF\r\n\x1a\n"
MOST_NUMBERS = 1 << 26  # in a file: 256 MiB


class _Refused(Exception):
    """What is wrong with a file, as the end of a sentence."""


def read_tensors(path: str) -> dict[str, np.ndarray] | str:
    """The tensors of an HDF5 file of Keras or of a `state_dict`, by name; or what is wrong with the file."""
    with open(path, "rb") as file:
        is_hdf5 = file.read(len(HDF5)) == HDF5
    try:
        return dict(_keras_arrays(path) if is_hdf5 else _state_arrays(path))
    except _Refused as refusal:
        return str(refusal)
    except MemoryError:
        raise
    except Exception as error:  # parsers raise anything on damaged bytes
        reason = one_line(str(error).strip().partition("\n")[0]) or type(error).__name__
        kind = (
            "readable weights of Keras"
            if is_hdf5
            else "weights that can be read without running code"
        )
        return f"holds no {kind} ({reason})"


def _state_arrays(path: str) -> Iterator[tuple[str, np.ndarray]]:
    content = torch.load(path, map_location="cpu", weights_only=True)
    state = content.get("state_dict", content) if isinstance(content, dict) else content
    if not isinstance(state, dict) or not all(isinstance(x, Tensor) for x in state.values()):
        raise _Refused(f"expected tensors by name, got {one_line(repr(type(state).__name__))}")
    for name, x in state.items():
        if x.layout != torch.strided or x.is_nested or x.is_quantized or x.device.type != "cpu":
            raise _Refused(f"{one_line(str(name))}: expected a plain tensor, got another layout")
    _check_count(sum(x.numel() for x in state.values()))
    for name, x in state.items():
        yield str(name), (x.float() if x.is_floating_point() else x).contiguous().numpy()


def _keras_arrays(path: str) -> Iterator[tuple[str, np.ndarray]]:
    try:
        import h5py
    except ImportError:
        remedy = "install it with: pip install 'torchcaps[h5]'"
        raise _Refused(f"reading Keras' weights needs h5py; {remedy}") from None
    with h5py.File(path, "r") as file:
        root = _member(file, "model_weights") if "model_weights" in file else file
        datasets: dict[str, Any] = {}
        for layer in map(_text, root.attrs["layer_names"]):
            group = _member(root, layer)
            for name in map(_text, group.attrs["weight_names"]):
                dataset = _member(group, name)
                if dataset.is_virtual or dataset.external:
                    raise ValueError(f"{name} is kept in another file")
                datasets[f"{layer}/{name}"] = dataset
        _check_count(sum(prod(dataset.shape) for dataset in datasets.values()))
        for name, dataset in datasets.items():
            yield name, dataset.astype("float32")[()]


def _member(group: Any, name: str) -> Any:
    """A member of a group of an HDF5 file, by its path; ValueError where a part of it is in another file."""
    import h5py

    for part in Path(name).parts:
        if not isinstance(group.get(part, getlink=True), h5py.HardLink):
            raise ValueError(f"{name} is a link")
        group = group[part]
    return group


def _check_count(count: int) -> None:
    if count > MOST_NUMBERS:
        raise _Refused(f"expected at most {MOST_NUMBERS:,} numbers, got {count:,}")


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)

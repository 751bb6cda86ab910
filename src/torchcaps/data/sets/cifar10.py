"""CIFAR-10: small color photographs.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009. Binary batches are
records of one label byte and 3,072 pixel bytes (red, green, blue planes of 32 × 32). A Python batch
is a pickled dictionary whose `data` is uint8 `[n, 3072]` in the same order. Stand-ins replace the
functions that rebuild a numpy array, and a pickle that names anything else is refused.
"""

import io
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchcaps.data._registry import DatasetInfo, ReadRequest, register_directory_format
from torchcaps.data.budget import MemoryBudget, read_bytes
from torchcaps.data.dataset import Dataset, check_labels
from torchcaps.data.folder import read_tar
from torchcaps.data.sources import Archive
from torchcaps.errors import DataError

RECORD = 1 + 3 * 32 * 32  # bytes
STEMS = {"train": "data_batch_[0-9]", "test": "test_batch"}
OPCODE_COST = 256  # bytes of memory that an opcode of a pickle takes at most, besides what it reads
FOLDERS = (".", "cifar-10-batches-bin", "cifar-10-batches-py")
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
JPEG_COPY = "cifar10-jpg"  # the name of a folder, and of the archive in it
INFO = DatasetInfo(
    name="cifar10",
    title="CIFAR-10 color photographs",
    image_shape=(3, 32, 32),
    train=50_000,
    test=10_000,
    classes=(
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ),
    license="none stated; its authors ask that their technical report of 2009 be cited",
    source="https://www.cs.toronto.edu/~kriz/cifar.html",
    sha256={
        "data_batch_1.bin": None,
        "data_batch_2.bin": None,
        "data_batch_3.bin": None,
        "data_batch_4.bin": None,
        "data_batch_5.bin": None,
        "test_batch.bin": None,
    },
    sources=(Archive(URL, folder=FOLDERS[1], md5="c32a1d4ab5d03f1284b67883e8d87530"),),
)


def _find_batches(folder: Path, split: str) -> list[Path]:
    """The batches of a split, binary ones before Python's."""
    stem = STEMS[split]
    return sorted(folder.glob(f"{stem}.bin")) or sorted(folder.glob(stem))


def read_cifar(
    folder: str | Path,
    split: str = "train",
    name: str = "cifar10",
    budget: MemoryBudget | None = None,
) -> Dataset:
    """Read the batches `data_batch_*` or `test_batch`, binary (`.bin`) or Python.

    Args:
        folder: that holds the batches.
        split: "train" or "test".
        name: of the set.
        budget: of memory.

    Returns:
        Images, uint8 `[n, 3, 32, 32]`.

    Raises:
        DataError: no batch, a gap in their numbers, a truncated or damaged one, or a label outside
            the ten classes.
    """
    folder = Path(folder)
    files = _find_batches(folder, split)
    if not files:
        raise DataError(f"{folder}: no {split} batch ({STEMS[split]}, with or without .bin) in it")
    if split == "train" and files[-1].stem[-1] != str(len(files)):
        raise DataError(f"{folder}: a batch is missing between data_batch_1 and {files[-1].name}")
    budget = budget or MemoryBudget()
    labels = []
    pixels = []
    for file in files:
        read = _read_binary if file.suffix == ".bin" else _read_python
        batch_labels, batch_pixels = read(file, budget)
        labels.append(torch.from_numpy(batch_labels.astype(np.int64)))
        pixels.append(batch_pixels)
        check_labels(str(file), labels[-1], INFO.classes)
    images = torch.from_numpy(np.concatenate(pixels)).unflatten(1, INFO.image_shape)
    return Dataset(images, {"label": torch.cat(labels)}, INFO.classes, name)


def _read_binary(path: Path, budget: MemoryBudget) -> tuple[np.ndarray, np.ndarray]:
    """Labels `[n]` and pixels `[n, 3072]` of a binary batch."""
    content = np.frombuffer(read_bytes(path, budget), dtype=np.uint8)
    if len(content) == 0 or len(content) % RECORD:
        problem = f"truncated or not CIFAR-10, {len(content)} bytes are no multiple of {RECORD}"
        raise DataError(f"{path}: {problem}")
    records = content.reshape(-1, RECORD)
    return records[:, 0], records[:, 1:]


def _read_python(path: Path, budget: MemoryBudget) -> tuple[np.ndarray, np.ndarray]:
    """Labels `[n]` and pixels `[n, 3072]` of a Python batch."""
    content = io.BytesIO(read_bytes(path, budget))
    try:
        batch = _ArrayUnpickler(content, budget).load()
        labels = _to_array(batch[b"labels"])
        pixels = _to_array(batch[b"data"])
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except Exception as error:  # a damaged pickle can raise anything
        reason = str(error) or type(error).__name__
        raise DataError(f"{path}: truncated or damaged CIFAR-10 batch ({reason})") from None
    is_aligned = pixels.shape == (len(labels), RECORD - 1)
    if labels.dtype.kind not in "iu" or pixels.dtype != np.uint8 or not is_aligned:
        expected = f"expected data [n, {RECORD - 1}] of uint8 with n integer labels"
        got = f"{list(pixels.shape)} of {pixels.dtype} with {labels.size} labels of {labels.dtype}"
        raise DataError(f"{path}: {expected}, got {got}")
    return labels, pixels


def _to_array(content: object) -> np.ndarray:
    """An array, by the state that numpy pickles of it, or a list of numbers."""
    if isinstance(content, _Named):
        _, shape, dtype, is_fortran, buffer = content.state
        array = np.frombuffer(buffer, _to_dtype(dtype))
        return array.reshape(shape, order="F" if is_fortran else "C")
    if isinstance(content, list) and set(map(type, content)) <= {int, float}:
        return np.asarray(content)
    raise DataError("expected labels and data as arrays or lists of numbers")


def _to_dtype(dtype: Any) -> np.dtype:
    """A type of numbers, by what numpy pickles of it."""
    code = _to_text(dtype.args[0])
    order = _to_text(dtype.state[1])
    if not re.fullmatch("[|<>=]?[biuf][1248]", code):
        raise DataError(f"refused: the pickle asks for the type {code!r}")
    return np.dtype(code).newbyteorder(order)


def _to_text(text: Any) -> Any:
    return text.decode() if isinstance(text, bytes) else text


class _Named:
    """What a pickle may name: it keeps its arguments and its state, and does nothing with them."""

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state


# Builders of arrays, whose place differs between versions of numpy.
ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


class _Opcodes(dict[int, Any]):
    """What each opcode does; a look-up is an opcode met, and is counted."""

    def __init__(self, functions: dict[int, Any], budget: MemoryBudget) -> None:
        super().__init__(functions)
        self.budget = budget

    def __getitem__(self, code: int) -> Any:
        self.budget.reserve("the pickle", OPCODE_COST)
        # A bytearray makes room for as much as it says, before it looks at what is there.
        if code == pickle.BYTEARRAY8[0]:
            raise DataError("refused: the pickle holds a bytearray, which no batch needs")
        return super().__getitem__(code)


class _ArrayUnpickler(pickle._Unpickler):
    """Python's unpickler in Python: that in C allocates what an opcode asks for, unseen."""

    def __init__(self, content: io.BytesIO, budget: MemoryBudget) -> None:
        super().__init__(content, encoding="bytes")
        self.budget = budget
        self.dispatch = _Opcodes(pickle._Unpickler.dispatch, budget)  # type: ignore[misc]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return self.encode
        if (module, name) not in ALLOWED:
            problem = f"the pickle asks for {module}.{name}, which is no part of an array"
            raise DataError(f"refused: {problem}")
        return _Named

    def encode(self, text: str, encoding: str) -> bytes:
        """Bytes as Python 3 writes them into an old-style pickle; no other codec is let through."""
        if encoding not in ("latin1", "latin-1"):
            raise DataError(f"refused: the pickle asks for the codec {encoding!r}")
        self.budget.reserve("the pickle", len(text))
        return text.encode("latin1")


def _find_place(folder: Path) -> Path | None:
    """The folder that holds batches, itself or in `folder`; or an archive of JPEGs."""
    for name in FOLDERS:
        place = folder / name
        if _find_batches(place, "train") or _find_batches(place, "test"):
            return place
    for place in (folder, folder / JPEG_COPY):
        archive = place / f"{JPEG_COPY}.tar.gz"
        if archive.is_file():
            return archive
    return None


def _read(folder: Path, request: ReadRequest, name: str) -> Dataset:
    """The batches of a folder, or else its archive of JPEGs."""
    place = _find_place(folder) or folder
    if place.is_file():  # JPEGs lose detail, so that the set is then called "cifar10-jpg"
        images = read_tar(place, replace(request, in_chans=3))
        return replace(images, name=JPEG_COPY)
    return read_cifar(place, request.split, name, request.budget)


register_directory_format(
    INFO,
    "a folder of CIFAR-10 batches",
    lambda folder: _find_place(folder) is not None,
    _read,
)

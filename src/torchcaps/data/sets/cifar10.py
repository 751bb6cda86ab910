"""CIFAR-10: small color photographs (Krizhevsky 2009, "Learning multiple layers of features from tiny images").

Binary batches are records of one label byte and 3,072 pixel bytes (red, green, blue planes of 32 × 32). A Python batch
is a pickled dictionary whose `data` is uint8 `[n, 3072]` in the same order. Stand-ins take the place of what rebuilds a
numpy array, and a pickle that names anything else is refused.
"""

import io
import pickle
import re
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from torchcaps.data._registry import DatasetInfo, ReadRequest, register_directory_format
from torchcaps.data.budget import MemoryBudget, read_bytes
from torchcaps.data.dataset import ImageSet, check_labels
from torchcaps.data.folder import read_tar
from torchcaps.data.sources import Archive
from torchcaps.errors import DataError

RECORD = 1 + 3 * 32 * 32
STEMS = {"train": "data_batch_[0-9]", "test": "test_batch"}
OPCODE_COST = 256  # bytes of memory that an opcode of a pickle takes at most, besides what it reads
FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py")
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
    sha256=dict.fromkeys((*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")),
    sources=(Archive(URL, folder=FOLDERS[0], md5="c32a1d4ab5d03f1284b67883e8d87530"),),
)


def _batches(folder: Path, split: str) -> list[Path]:
    stem = STEMS[split]
    return sorted(folder.glob(f"{stem}.bin")) or sorted(folder.glob(stem))


def read_cifar(
    folder: str | Path,
    split: str = "train",
    name: str = "cifar10",
    budget: MemoryBudget | None = None,
) -> ImageSet:
    """Read the batches `data_batch_*` or `test_batch` in a folder, binary (`.bin`) or Python: uint8 `[n, 3, 32, 32]`.

    DataError: no batch, a gap in their numbers, a truncated or damaged one, or a label outside the ten classes.
    """
    folder = Path(folder)
    files = _batches(folder, split)
    if not files:
        raise DataError(f"{folder}: no {split} batch ({STEMS[split]}, with or without .bin) in it")
    if split == "train" and files[-1].stem[-1] != str(len(files)):
        raise DataError(f"{folder}: a batch is missing between data_batch_1 and {files[-1].name}")
    budget = budget or MemoryBudget()
    batches = [
        _read_binary(file, budget) if file.suffix == ".bin" else _read_python(file, budget)
        for file in files
    ]
    for file, (held, _) in zip(files, batches, strict=True):
        check_labels(str(file), torch.from_numpy(held.astype(np.int64)), INFO.classes)
    labels = torch.from_numpy(np.concatenate([labels for labels, _ in batches]).astype(np.int64))
    pixels = torch.from_numpy(
        np.concatenate([pixels for _, pixels in batches]).reshape(-1, *INFO.image_shape)
    )
    return ImageSet(pixels, labels, INFO.classes, name)


def _read_binary(path: Path, budget: MemoryBudget) -> tuple[np.ndarray, np.ndarray]:
    data = np.frombuffer(read_bytes(path, budget), dtype=np.uint8)
    if len(data) == 0 or len(data) % RECORD:
        raise DataError(
            f"{path}: truncated or not CIFAR-10, {len(data)} bytes are no multiple of {RECORD}"
        )
    return data[::RECORD], data.reshape(-1, RECORD)[:, 1:]


def _read_python(path: Path, budget: MemoryBudget) -> tuple[np.ndarray, np.ndarray]:
    data = io.BytesIO(read_bytes(path, budget))
    try:
        batch = _ArraysOnly(data, budget).load()
        labels, pixels = _values(batch[b"labels"]), _values(batch[b"data"])
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(
            f"{path}: truncated or damaged CIFAR-10 batch ({str(error) or type(error).__name__})"
        ) from None
    if (
        labels.dtype.kind not in "iu"
        or pixels.dtype != np.uint8
        or pixels.shape != (len(labels), RECORD - 1)
    ):
        found = (
            f"{list(pixels.shape)} of {pixels.dtype} with {labels.size} labels of {labels.dtype}"
        )
        raise DataError(
            f"{path}: expected data [n, {RECORD - 1}] of uint8 with n integer labels, got {found}"
        )
    return labels, pixels


def _values(value: object) -> np.ndarray:
    if isinstance(value, _Named):
        _, shape, kind, by_column, data = value.state
        return np.frombuffer(data, _dtype(kind)).reshape(shape, order="F" if by_column else "C")
    if isinstance(value, list) and all(type(number) in (int, float) for number in value):
        return np.asarray(value)
    raise DataError("expected labels and data as arrays or lists of numbers")


def _dtype(kind: Any) -> np.dtype:
    texts: Any = [
        part.decode() if isinstance(part, bytes) else part for part in (kind.args[0], kind.state[1])
    ]
    code, order = texts
    if not re.fullmatch("[|<>=]?[biuf][1248]", code):
        raise DataError(f"refused: the pickle asks for the type {code!r}")
    return np.dtype(code).newbyteorder(order)


class _Named:
    """What a pickle may name: it keeps the arguments and the state that it gets, and does nothing with them."""

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state


# Where pickles name an array's builder: its place differs between versions of numpy.
ALLOWED: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _Named,
    ("numpy._core.multiarray", "_reconstruct"): _Named,
    ("numpy", "ndarray"): _Named,
    ("numpy", "dtype"): _Named,
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


class _ArraysOnly(pickle._Unpickler):
    """Python's unpickler in Python: that in C allocates what an opcode asks for before it looks at what is there."""

    def __init__(self, data: io.BytesIO, budget: MemoryBudget) -> None:
        super().__init__(data, encoding="bytes")
        self.budget = budget
        self.dispatch = _Opcodes(pickle._Unpickler.dispatch, budget)  # type: ignore[misc]

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return self.encoded
        if (module, name) not in ALLOWED:
            raise DataError(
                f"refused: the pickle asks for {module}.{name}, which is no part of an array"
            )
        return ALLOWED[module, name]

    def encoded(self, text: str, encoding: str) -> bytes:
        """Bytes as Python 3 writes them into an old-style pickle; no other codec is let through."""
        if encoding not in ("latin1", "latin-1"):
            raise DataError(f"refused: the pickle asks for the codec {encoding!r}")
        self.budget.reserve("the pickle", len(text))
        return text.encode("latin1")


def _found(folder: Path) -> Path | None:
    """The folder that holds batches, `folder` itself or one of the usual names in it; or an archive of JPEGs."""
    places = (folder, *(folder / name for name in FOLDERS))
    batches = (place for place in places if any(_batches(place, split) for split in STEMS))
    archives = (place / f"{JPEG_COPY}.tar.gz" for place in (folder, folder / JPEG_COPY))
    return next(chain(batches, filter(Path.is_file, archives)), None)


def _read(folder: Path, request: ReadRequest, name: str) -> ImageSet:
    place = _found(folder) or folder
    if place.is_file():  # JPEGs lose detail, so that the set is then called "cifar10-jpg"
        images = read_tar(place, replace(request, in_chans=3))
        return replace(images, name=JPEG_COPY)
    return read_cifar(place, request.split, name, request.budget)


register_directory_format(
    INFO, "a folder of CIFAR-10 batches", lambda folder: _found(folder) is not None, _read
)

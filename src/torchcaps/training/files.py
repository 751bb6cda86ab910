"""Files and folders of a run: a file is written whole or not at all.

Tensors are one safetensors file whose metadata is JSON; nothing in it is code. The metadata holds a
description, the number of the format, and a checksum (CRC-32) of all of it.
"""

import itertools
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialize

from torchcaps.errors import RunError, TrainingError, check_regular, one_line, read_text
from torchcaps.types import Json, StrPath, Tensors

FORMAT = 1  # of run folders and checkpoints; another one is refused
CONFIG_FILE = "config.json"  # makes a folder a run
LOCK_FILE = ".lock"
MODEL_FILE = "model.safetensors"
CALIBRATION_FILE = "calibration.json"
LAST_FILE = "last.safetensors"
PREVIOUS_FILE = "previous.safetensors"
METADATA_KEY = "torchcaps"
MAX_HEADER_BYTES = 16 << 20  # names of a hundred thousand classes take a fifth of it
_counter = itertools.count()


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, where they are missing; RunError if that cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: the folder cannot be made ({error.strerror})") from error


@contextmanager
def atomic(path: Path, previous: Path | None = None) -> Iterator[Path]:
    """A temporary path beside `path` that replaces it when the block ends well, else is removed.

    The block makes a file, or a flat folder, which replaces none that has files.
    The file that is replaced goes to `previous`, if one is named: at every moment one of the two
    is there and whole. Raises TrainingError when the file cannot be written.
    """
    # The name is of this process and this call alone: two writers of one file do not mix.
    partial = path.with_name(f".{path.name}.{os.getpid()}-{next(_counter)}.partial")
    try:
        yield partial
        for member in files_of(partial):
            with open(member, "rb+") as file:
                os.fsync(file.fileno())
        if previous is not None and path.exists():
            os.replace(path, previous)
        move(partial, path)
    except OSError as error:
        raise TrainingError(
            f"{path}: cannot be written ({error.strerror or error}); "
            "what was there before is unchanged"
        ) from error
    finally:
        rmtree(partial, ignore_errors=True)
        with suppress(OSError):  # moved already, or never made
            partial.unlink()


def files_of(path: Path) -> list[Path]:
    """The files in a folder; or the file itself, where it is none."""
    return list(path.iterdir()) if path.is_dir() else [path]


def move(source: Path, target: Path) -> None:
    """Rename a file within its folder, for good.

    A power cut after it does not undo it.
    """
    os.replace(source, target)
    with suppress(OSError):  # not every system opens folders, or synchronizes them
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_json(path: Path, value: Any) -> None:
    """Write indented JSON atomically."""
    with atomic(path) as partial:
        partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


@contextmanager
def reading(path: StrPath, kind: str, advice: str = "") -> Iterator[None]:
    """Raise RunError for a file whose reading fails.

    Args:
        path: of the file, or its name.
        kind: what it should be, in words.
        advice: end of the sentence.
    """
    try:
        yield
    except RunError:
        raise
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        reason = "it is nested too deep"
        if isinstance(error, KeyError):
            reason = f"the entry {error} is missing"
        elif not isinstance(error, RecursionError):
            reason = one_line(str(error))
        raise RunError(f"{path}: is no readable {kind} ({reason}){advice}") from error


def read_json(path: Path, version: int | None = None) -> Json:
    """A JSON object, without its "format".

    Raises OSError, ValueError or RecursionError where it cannot be read, is none, or is of another
    format than `version`; None takes any.
    """
    content = json.loads(read_text(path))
    if not isinstance(content, dict):
        raise ValueError("expected an object by names")
    number = content.pop("format", None)
    if version not in (None, number):
        raise ValueError(f"expected format {version}, got {number}")
    return content


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold `folder`, which is made where it is missing, for this process alone.

    The system releases the lock of a process that dies. Raises RunError when another process holds
    the folder, TrainingError when it cannot be written to.
    """
    path = folder / LOCK_FILE
    make_folder(folder)
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        holder = "another process"
        with suppress(OSError, ValueError):
            holder = f"process {int(path.read_text(encoding='ascii'))}"
        raise RunError(
            f"{folder}: {holder} is training here; wait for its end or stop it, "
            "or name another --output"
        ) from error
    except OSError as error:
        with suppress(OSError):  # not empty: it was there before
            folder.rmdir()
        raise TrainingError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        with suppress(OSError):  # Windows does not write to a locked file
            path.write_text(str(os.getpid()), encoding="ascii")
        yield
    finally:
        lock.release()  # the file stays: removing it would let two processes hold it


def save_tensors(
    path: Path, tensors: Tensors, description: Json, *, previous: Path | None = None
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
    copies: Tensors = {}
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


def load_tensors(path: Path) -> tuple[Tensors, Json]:
    """Tensors (on the CPU) and description of a file written by `save_tensors`.

    Raises RunError for a file that is absent, damaged (one bit is enough), or of another format.
    """
    with _opened(path) as (file, content):
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if content.pop("crc32", None) != checksum(tensors, content):
            raise ValueError("its content does not match its checksum")
        del content["format"]
        return tensors, content


def read_header(path: Path) -> tuple[Tensors, Json]:
    """A file's tensors on the meta device, and its description; no tensor is read.

    Of a tensor's type only the kind is that of the file: floating point or whole numbers. Errors as
    `load_tensors`, but for damage outside of the header.
    """
    tensors = {}
    with _opened(path) as (file, content):
        for name in file.keys():  # noqa: SIM118
            part = file.get_slice(name)
            dtype = torch.float32 if "F" in part.get_dtype() else torch.int64
            tensors[name] = torch.empty(part.get_shape(), dtype=dtype, device="meta")
        return tensors, content


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Json]]:
    """A safetensors file with a header of at most 16 MiB; its description, format and checksum.

    What fails while it is open is a RunError.
    """
    with reading(path, "checkpoint"):
        check_regular(path)
        with open(path, "rb") as start:
            header_bytes = int.from_bytes(start.read(8), "little")
        if header_bytes > MAX_HEADER_BYTES:
            raise ValueError(
                f"expected a header of at most {MAX_HEADER_BYTES} bytes, got {header_bytes}"
            )
        with safe_open(path, "pt") as file:
            content = json.loads((file.metadata() or {}).get(METADATA_KEY, "null"))
            if not isinstance(content, dict):
                raise RunError(
                    f"{path}: was not written by torchcaps (its header says nothing of a model)"
                )
            if content.get("format") != FORMAT:
                raise RunError(
                    f"{path}: expected a checkpoint of format {FORMAT}, got {content.get('format')}"
                )
            yield file, content


def checksum(tensors: Tensors, content: Json | None = None) -> int:
    """CRC-32 of tensors and of `content`, which is JSON-ready.

    Names, types, sizes and bytes of the tensors count; they are on the CPU.
    """
    crc = zlib.crc32(json.dumps(content, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        crc = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), crc)
        crc = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, crc)
    return crc

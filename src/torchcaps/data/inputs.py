"""What there is to predict, one input at a time: files, folders, patterns, archives, pictures.

Nothing is decoded here. Memory does not grow with the number of inputs, but for the names of the
files in one folder, or of one pattern.
"""

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from torchcaps.data.folder import archive_members
from torchcaps.data.images import ARCHIVES, contents_note, natural_key
from torchcaps.data.preprocess import Picture, Preprocess
from torchcaps.data.reading import read_errors
from torchcaps.errors import ArgumentError, DataError
from torchcaps.types import StrPath

BATCH_AXES = 4  # of an array of several images


class Input(NamedTuple):
    """One input.

    Attributes:
        name: path of its file, or `ARCHIVE:MEMBER`; None for a picture in memory.
        source: the path, the bytes of a file in an archive, a picture, or the error of what could
            not be listed.
        output_name: beginning of the names of files that are drawn of it.
        changes: what was done to bring it into the form of the training images; see `Prepared`.
        problem: why it shows nothing like them; see `Prepared`.
    """

    name: str | None
    source: Picture | bytes | DataError
    output_name: str = ""
    changes: str = ""
    problem: str = ""


def list_inputs(inputs: Any, preprocess: Preprocess) -> Iterator[Input]:
    """Each input by itself, in order.

    Files in a folder come in natural order ("2" before "10"), at every depth; hidden files and
    folders are skipped. So are files that are no images by their endings or, without an ending, by
    their content, unless they are named themselves.

    Args:
        inputs: paths of files, folders and tar archives, and patterns such as "photos/**/*.jpg",
            which stand for files; Pillow images; arrays or tensors of one image, or of several
            `[n, channels, height, width]`. One of these, or an iterable of them.
        preprocess: says which files of a folder, archive or pattern are inputs.

    Raises:
        ArgumentError: none of these.

    Yields:
        The inputs. What is not there, or holds nothing, is an input whose source is a DataError.
    """
    if isinstance(inputs, Picture) and getattr(inputs, "ndim", 0) != BATCH_AXES:
        inputs = [inputs]
    if not isinstance(inputs, Iterable):
        raise ArgumentError(
            "inputs", f"expected paths, pictures, arrays or an iterable of them, got {inputs!r}"
        )
    for element in inputs:
        if isinstance(element, StrPath):
            yield from _list_path(str(element), preprocess)
        elif getattr(element, "ndim", 0) == BATCH_AXES:
            yield from (Input(None, image) for image in element)
        else:
            yield Input(None, element)


def _list_path(text: str, preprocess: Preprocess) -> Iterator[Input]:
    """The inputs that a path or a pattern stands for."""
    path = Path(text)
    try:
        with read_errors(text):
            if path.is_dir():
                inputs = _walk(path, preprocess)
            elif path.exists() and text.lower().endswith(ARCHIVES):
                inputs = _members(path, preprocess)
            elif path.exists():
                inputs = iter([Input(text, text)])
            elif glob.has_magic(text):
                inputs = (
                    Input(match, match)
                    for match in sorted(glob.iglob(text, recursive=True), key=natural_key)
                    if preprocess.is_input(match) and not os.path.isdir(match)
                )
            else:
                raise DataError(f"{text}: no such file or folder")
            first = next(inputs, None)
            if first is None:
                raise DataError(f"{text}: no image in it{contents_note(path)}")
            yield first
            yield from inputs
    except DataError as error:
        yield Input(text, error)


def _walk(folder: Path, preprocess: Preprocess) -> Iterator[Input]:
    """The files in a folder at every depth. Links to folders are not followed: they may loop."""
    try:
        with read_errors(folder):
            names = sorted(os.listdir(folder), key=natural_key)
    except DataError as error:
        yield Input(str(folder), error)
        return
    for name in names:
        path = folder / name
        if name.startswith("."):
            continue
        if path.is_dir() and not path.is_symlink():
            yield from _walk(path, preprocess)
        elif preprocess.is_input(str(path)):
            yield Input(str(path), str(path))


def _members(path: Path, preprocess: Preprocess) -> Iterator[Input]:
    """The files in an archive, plain or compressed, in its order."""
    for member in archive_members(path):
        name = PurePosixPath(*member.parts)
        if member.file and name.suffix and preprocess.is_input(name.name):
            yield Input(f"{path}:{name}", member.file.read())

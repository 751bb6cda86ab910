"""A program of `torch.export`: torch runs it, without this package."""

import json
from pathlib import Path

import torch

from torchcaps.exporting.formats import (
    METADATA_KEY,
    Answer,
    Subject,
    answer_of,
    register_export_format,
)


def read_program(path: Path) -> Answer:
    """Open a program.

    Args:
        path: of the file.

    Returns:
        The function that it answers with.
    """
    with path.open("rb") as file:
        return answer_of(torch.export.load(file).module())


@register_export_format("torch", ".pt2", read_program)
def write_program(subject: Subject, path: Path) -> None:
    """Write a program; its metadata is the extra file "torchcaps".

    Args:
        subject: what to write.
        path: of the file.

    Raises:
        ExportError: torch.export cannot write the model.
    """
    metadata = {METADATA_KEY: json.dumps(subject.metadata)}
    with path.open("wb") as file:
        torch.export.save(subject.program, file, extra_files=metadata)

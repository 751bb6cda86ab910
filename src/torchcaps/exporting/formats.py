"""What a format is, and what it writes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from torchcaps.errors import ExportError
from torchcaps.registry import Registry
from torchcaps.reporting.api import ModelOrRun

INPUT = "images"  # names in files
OUTPUT = "activations"
METADATA_KEY = "torchcaps"

Answer = Callable[[NDArray[Any]], NDArray[Any]]
"""From images `[batch, channels, height, width]`, float32, to what the model gives for them."""
Writer = Callable[["Subject", Path], None]
"""(what is to be written, path of the file)"""


@dataclass(frozen=True)
class Subject:
    """What is to be written.

    Attributes:
        model: in eval mode, on the CPU, with the weights as the file keeps them.
        images: `[2, channels, height, width]`, an example of its inputs.
        metadata: for the file, ready for JSON; see docs/export.md.
        origin: the model, or the run or file of weights, that it comes from.
        opset: version of ONNX's operators; None for the default of the converter.
        root: where the named data set of a run is looked for first.
    """

    model: nn.Module
    images: Tensor
    metadata: Mapping[str, Any]
    origin: ModelOrRun
    opset: int | None = None
    root: str | None = None

    @cached_property
    def program(self) -> torch.export.ExportedProgram:
        """The model as a program of torch's operators, for batches of any size.

        Raises:
            ExportError: the model does something that depends on values, or on the batch.
        """
        batch = torch.export.Dim("batch", min=1)
        try:
            with torch.no_grad():
                return torch.export.export(
                    self.model, (self.images,), dynamic_shapes=({0: batch},), strict=False
                )
        # Its errors are of many types, and of many lines.
        except Exception as error:
            reason = str(error).strip() or type(error).__name__
            raise ExportError(
                f"model: torch.export cannot write it for batches of any size ({reason})"
            ) from error


@dataclass(frozen=True)
class ExportFormat:
    """A format of files.

    Attributes:
        suffix: of its files, such as ".onnx"; "" for a folder.
        write: writes a file.
        read: opens a file and returns the function that it answers with.
        file: where it is written by default, within the folder of a run.
        half_limit: its files have weights of more numbers than this in float16 in any case; None
            for those that have them as asked.
    """

    suffix: str
    write: Writer
    read: Callable[[Path], Answer]
    file: str
    half_limit: int | None = None


def answer_of(model: Callable[[Tensor], Tensor]) -> Answer:
    """What a module of torch answers with, as a function of arrays."""

    def answer(images: NDArray[Any]) -> NDArray[Any]:
        with torch.inference_mode():
            return model(torch.from_numpy(images)).numpy()

    return answer


EXPORT_FORMATS: Registry[ExportFormat] = Registry("export format", "torchcaps.exporting")


def register_export_format(
    name: str,
    suffix: str,
    read: Callable[[Path], Answer],
    *,
    reads: Iterable[str] = ("half", "int8"),
    file: str = "",
    half_limit: int | None = None,
    replace: bool = False,
) -> Callable[[Writer], Writer]:
    """Decorator that registers a format by the function that writes it.

    Args:
        name: of the format.
        suffix: of its files, such as ".onnx"; "" for a folder, which only its name chooses.
        read: opens a file and returns the function that it answers with. `export` checks a file by
            it.
        reads: "opset" if the format has versions of operators, "half" and "int8" if it keeps
            weights so.
        file: where it is written by default, within the folder of a run; else "model" and the
            suffix, or the name of a format that is a folder.
        half_limit: its files have weights of more numbers than this in float16 in any case.
        replace: allow a name that is taken.

    Returns:
        The decorator, which returns the function as it is.

    Raises:
        ArgumentError: the name is taken, unless `replace`.
    """

    def decorate(write: Writer) -> Writer:
        default = f"model{suffix}" if suffix else name
        export_format = ExportFormat(suffix, write, read, file or default, half_limit)
        EXPORT_FORMATS.add(name, export_format, reads=reads, replace=replace)
        return write

    return decorate

"""ONNX: a graph of standard operators, which other programs run without torch."""

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from torchcaps.errors import ExportError, check_packages, check_range
from torchcaps.exporting.formats import (
    INPUT,
    METADATA_KEY,
    OUTPUT,
    Answer,
    Subject,
    register_export_format,
)

LOWEST_OPSET = 18  # of the converter's operators
SHIFT = 6  # added to the argument before the series
# psi(y) = ln y - 1 / (2 y) - sum_k B_2k / (2 k y^2k), in powers of 1 / y^2.
SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240)


def digamma(x: Any) -> Any:
    """The derivative of ln Gamma in operators of ONNX, which has none of its own.

    psi(x) = psi(x + 6) - sum_k 1 / (x + k) over k from 0 to 5, and psi(x + 6) by four terms of its
    asymptotic series. For x of at least 0.5, up to the largest float32, the result in float32 is
    within 1e-6 of the true one, or within 4e-7 of its size where that is more.

    Args:
        x: of ONNX, in float32, above 0.

    Returns:
        psi(x).
    """
    from onnxscript import opset18 as op

    y = x + float(SHIFT)
    inverse = op.Reciprocal(y)
    square = inverse * inverse
    series = 0.0
    for coefficient in reversed(SERIES):
        series = square * (coefficient + series)
    psi = op.Log(y) - inverse * 0.5 - series
    for k in range(SHIFT):
        psi = psi - op.Reciprocal(x + float(k))
    return psi


def read_onnx(path: Path) -> Answer:
    """Open a file with ONNX Runtime, on the CPU and on one thread.

    Args:
        path: of the file.

    Returns:
        The function that it answers with.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors alone
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def answer(images: NDArray) -> NDArray:
        return session.run([OUTPUT], {INPUT: images})[0]

    return answer


@register_export_format("onnx", ".onnx", read_onnx, reads=("opset", "half", "int8"))
def write_onnx(subject: Subject, path: Path) -> None:
    """Write a graph; its metadata has the key "torchcaps".

    Args:
        subject: what to write.
        path: of the file.

    Raises:
        ArgumentError: a package is missing, or opset is out of range.
        ExportError: an operation of the model has no operator in ONNX.
    """
    check_packages("format", "export", "onnx", "onnxscript", "onnxruntime")
    import onnx

    if subject.opset is not None:
        check_range("opset", subject.opset, LOWEST_OPSET, onnx.defs.onnx_opset_version())
    # From the program, not from the model: of that torch would write a fixed batch without a word
    # where a dynamic one fails.
    program = subject.program
    # Without its remarks on packages of others and on its own deprecations.
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            converted = torch.onnx.export(
                program,
                opset_version=subject.opset,
                input_names=[INPUT],
                output_names=[OUTPUT],
                custom_translation_table={torch.ops.aten.digamma.default: digamma},
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__ or error).split("\n")[0]
        raise ExportError(f"model: onnx cannot hold it ({reason})") from error
    finally:
        logger.setLevel(level)
    assert converted is not None  # with dynamo it is a program
    converted.model.metadata_props[METADATA_KEY] = json.dumps(subject.metadata)
    converted.save(path, external_data=False)

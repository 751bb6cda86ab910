"""From a model or a run to a file that is checked."""

import math
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

import torchcaps
from torchcaps.errors import ArgumentError, ExportError, counted
from torchcaps.exporting.formats import EXPORT_FORMATS, Answer, Subject
from torchcaps.exporting.weights import StoredWeights
from torchcaps.reporting import open_task
from torchcaps.reporting.prediction import ModelOrRun, load_model
from torchcaps.training.files import atomic, files_of, make_folder
from torchcaps.training.run import is_run
from torchcaps.types import Json, StrPath, model_metadata, spec_of

FORMAT = 1  # of the metadata
BATCH_SIZES = (64, 3, 1)  # of images that a file is checked with
RUN_BATCH_SIZES = (*BATCH_SIZES, 32)  # of 100 test images of a run
MOST_PIXELS = 128**2  # of images of which 64 fit in memory where each pixel has capsules
FEW_BATCH_SIZES = (4, 3, 1)
TOLERANCE = 1e-5  # of outputs
# Where a model itself is less exact, a file may differ by so many times its rounding errors.
ROUNDING = 4


@dataclass(frozen=True)
class Exported:
    """A file that was written, and how it was checked.

    It is a path to whatever takes one, such as `open`.

    Attributes:
        path: of the file.
        format: its name.
        bytes: its size.
        weights: "float32", "float16", "int8", or "int8 and float16".
        images: what it was checked with, in words.
        batches: sizes of the batches.
        difference: largest difference between an output of the file and of the model with the
            weights that are in the file.
        loss: largest difference between an output of the model with these weights and with its own;
            0 for float32.
        changed: images whose class these weights change; None for a task of pixels.
        seconds: that writing took, without the check.
    """

    path: Path
    format: str
    bytes: int
    weights: str
    images: str
    batches: tuple[int, ...]
    difference: float
    loss: float
    changed: int | None
    seconds: float

    def __fspath__(self) -> str:
        return str(self.path)

    def to_dict(self) -> Json:
        """The attributes, ready for JSON."""
        return asdict(self) | {"path": str(self.path)}


def export(
    model_or_run: ModelOrRun,
    path: StrPath,
    *,
    format: str | None = None,
    half: bool = False,
    int8: bool = False,
    opset: int | None = None,
    root: str | None = None,
) -> Exported:
    """Write a trained model as a file that answers without this package.

    The file takes images `[batch, channels, height, width]`, float32, in batches of any size, and
    gives what `model(images)` gives: the activations of classes `[batch, classes]`, or, for a model
    of pixels, maps. Its metadata has the names of the classes, the preprocessing, and the
    calibration of the run: see docs/export.md.

    A file is checked before it gets its name, in batches of 1, 3 and 64: it must answer as the
    model does, within 1e-5, or, where the model itself is less exact than that, within four times
    its rounding errors. It is checked with 100 test images of a run; of a model without a run,
    with 68 random ones. Of a model of pixels with images above 128x128, 8 images in batches up
    to 4.

    Args:
        model_or_run: a model; a run, or its folder; or a file of weights.
        path: of the file, or of the folder of a page. What was there before is replaced when all is
            done; but a folder, which "hub" writes, replaces none.
        format: "onnx", "torch", "hub", "page", or one that was registered; by default from the
            ending of `path`.
        half: store all weights in float16; a page does so with large ones in any case.
        int8: store the matrices of capsule layers as whole numbers of 8 bits.
        opset: version of the operators of ONNX; by default the converter's.
        root: where the named data set of a run is looked for first.

    Returns:
        The file, and the figures of its check.

    Raises:
        RunError: for no run.
        DataError: if the data of the run cannot be read.
        ArgumentError: for an unknown format or an option that it does not have.
        ExportError: the format cannot hold the model, or the file does not answer as the model
            does; nothing is written then.

    Example:
        >>> tc.export("runs/capsnet-digits", "digits.onnx").difference
        1.2e-07
    """
    path = Path(path)
    suffixes = {entry.suffix: name for name, entry in EXPORT_FORMATS.items() if entry.suffix}
    name = format or suffixes.get(path.suffix)
    if name is None:
        endings = ", ".join(sorted(suffixes))
        raise ArgumentError("path", f"expected a file ending in one of {endings}, got {path.name}")
    export_format = EXPORT_FORMATS[name]
    default = Path(export_format.file)
    if default.name != export_format.file and not path.suffix:  # its files are alone in a folder
        path /= default.name
    half_limit = 0 if half else export_format.half_limit
    for option, value in {"opset": opset, "half": half, "int8": int8}.items():
        if value and option not in EXPORT_FORMATS.fact(name):
            raise ArgumentError(option, f"the format {name} has none")
    model = deepcopy(load_model(model_or_run)).cpu().float().eval()
    images, source = _check_images(model_or_run, model, root)
    is_exact = half_limit is None and not int8
    stored = model if is_exact else StoredWeights(model, half_limit, int8).eval()
    expected = _answers(stored, images)
    reference = expected if is_exact else _answers(model, images)
    loss = largest_difference(expected, reference)
    changed = None
    if not spec_of(model).is_dense:
        pairs = zip(expected, reference, strict=True)
        changed = sum(int((a.argmax(1) != b.argmax(1)).sum()) for a, b in pairs)
    weights = " and ".join(["int8"] * int8 + ["float16"] * (half_limit is not None)) or "float32"
    batches = tuple(sorted(set(map(len, images))))
    metadata = _describe(model) | {"weights": weights, "loss": loss, "changed": changed}
    metadata["checked"] = {"images": source, "batches": batches}
    make_folder(path.parent)
    with atomic(path) as partial:
        start = perf_counter()
        subject = Subject(stored, images[0][:2], metadata, model_or_run, opset, root)
        export_format.write(subject, partial)
        seconds = perf_counter() - start
        answer = export_format.read(partial)
        difference = largest_difference(_answers_of_file(answer, images, expected), expected)
        if not difference <= TOLERANCE:
            exact = _answers(deepcopy(stored).double(), [batch.double() for batch in images])
            rounding = largest_difference(exact, expected)
            if not difference <= ROUNDING * rounding:
                raise ExportError(
                    f"format: expected the model's outputs within {TOLERANCE} or {ROUNDING} x its "
                    f"rounding errors ({rounding:.1e}), got a difference of {difference:.1e}"
                )
        size = sum(file.stat().st_size for file in files_of(partial))
    return Exported(path, name, size, weights, source, batches, difference, loss, changed, seconds)


def _check_images(
    model_or_run: ModelOrRun, model: nn.Module, root: str | None
) -> tuple[list[Tensor], str]:
    """Batches of images to check a file with, and what they are in words."""
    preprocess = model_metadata(model).preprocess
    shape: Any = getattr(model, "image_shape", None)
    if preprocess is not None:
        shape = (preprocess.in_chans, *preprocess.model_size)
    if shape is None:
        raise ArgumentError("model", "expected .preprocess, as torchcaps.load gives it, got none")
    is_large = spec_of(model).is_dense and math.prod(shape[1:]) > MOST_PIXELS
    has_data = not isinstance(model_or_run, nn.Module) and is_run(Path(model_or_run))
    sizes = RUN_BATCH_SIZES if has_data else BATCH_SIZES
    if is_large:
        sizes = FEW_BATCH_SIZES
    if has_data:
        _, data = open_task(model_or_run, root=root, device="cpu")
        spread = torch.linspace(0, len(data) - 1, min(sum(sizes), len(data))).long()
        images = data.float_images(spread)
        source = f"{counted(len(images), 'test image')} of {data.name}"
    else:
        images = torch.rand(sum(sizes), *shape, generator=torch.Generator().manual_seed(0))
        source = f"{len(images)} random images, seed 0"
    # Where there are fewer images they are taken again, so that all sizes of batches occur.
    indices = torch.arange(sum(sizes)) % len(images)
    return [images[batch] for batch in indices.split(sizes)], source


def _describe(model: nn.Module) -> Json:
    """What a file says of its model."""
    metadata = model_metadata(model)
    spec = spec_of(model)
    return {
        "format": FORMAT,
        "version": torchcaps.__version__,
        "model": metadata.name,
        "task": spec.task if metadata.task == "auto" else metadata.task,
        "activation": spec.activation,
        "classes": list(metadata.classes),
        "preprocess": None if metadata.preprocess is None else metadata.preprocess.to_dict(),
        "calibration": metadata.calibration,
    }


@torch.inference_mode()
def _answers(model: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    """What a model gives for each batch."""
    answers = [model(images) for images in batches]
    for outputs in answers:
        if not isinstance(outputs, Tensor):
            kind = type(outputs).__name__
            raise ExportError(f"model: expected a tensor from model(images), got {kind}")
    return answers


def _answers_of_file(answer: Answer, batches: list[Tensor], expected: list[Tensor]) -> list[Tensor]:
    """What a file gives for each batch; ExportError where its shape is not as expected."""
    answers = []
    for images, outputs in zip(batches, expected, strict=True):
        # What runs a file has errors of its own, which are of any type.
        try:
            given = torch.from_numpy(answer(images.numpy()))
        except Exception as error:
            raise ExportError(
                f"format: the file does not take {counted(len(images), 'image')} ({error})"
            ) from error
        if given.shape != outputs.shape:
            shapes = f"expected outputs {list(outputs.shape)}, got {list(given.shape)}"
            raise ExportError(f"format: {shapes} from the file")
        answers.append(given)
    return answers


def largest_difference(first: list[Tensor], second: list[Tensor]) -> float:
    """The largest difference between outputs, batch by batch; NaN if there is one."""
    pairs = zip(first, second, strict=True)
    return float(torch.stack([(a - b).abs().max() for a, b in pairs]).max())

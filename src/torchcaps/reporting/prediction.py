"""Predictions of a trained model for pictures: as a list, or one by one for any number of them.

Also as lines of text, and as files: CSV, JSON lines and Parquet.
"""

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from torchcaps.data.files import decode_batches
from torchcaps.data.form import BLANK
from torchcaps.data.inputs import Input, list_inputs
from torchcaps.data.preprocess import Preprocess, read_picture
from torchcaps.distributed import current
from torchcaps.errors import (
    ArgumentError,
    DataError,
    RunError,
    check_known,
    check_positive,
    check_range,
)
from torchcaps.evaluation import HeldOutCalibration, doubt, reconstruction_distances
from torchcaps.evaluation.base import BATCH, device_of, eval_mode
from torchcaps.tasks._base import Task, task_class
from torchcaps.training.checkpoint import load, local_path
from torchcaps.training.device import resolve_device
from torchcaps.training.files import atomic, make_folder
from torchcaps.types import Json, StrPath, check_module, find_network, model_metadata
from torchcaps.words import UniqueNames

# What a prediction does not always need is imported where it is needed.
if TYPE_CHECKING:
    from torchcaps.training import Run

ModelOrRun: TypeAlias = "nn.Module | Run | StrPath"
"""A model; a run, or its folder; or a file of weights."""
Inputs = Any  # of `list_inputs`
Row = dict[str, Any]
Writer = Callable[[Row], None]
ROW_GROUP = 10_000  # rows of a Parquet file that are in memory at a time
DIGITS = 6  # of a number in a CSV
UNKNOWN = "unknown"  # label of an image of no known class
EMPTY = "empty"  # and of one that shows nothing


def load_model(model_or_run: ModelOrRun, device: str = "auto") -> Any:
    """The model of a run or file, or in a module; it is moved only where a device is named.

    Raises RunError for no run.
    """
    if isinstance(model_or_run, str | PathLike):
        return load(Path(model_or_run), device=resolve_device(device))
    check_module(model_or_run)
    model: Any = model_or_run
    if device != "auto":
        model.to(resolve_device(device))
    return find_network(model)  # the part that declares what the model is, wherever it is


def predict(
    model_or_run: ModelOrRun,
    inputs: Inputs,
    *,
    device: str = "auto",
    **options: Any,
) -> list[Row]:
    """Predict pictures with a trained model. Several processes share the work.

    Args:
        model_or_run: a run, or its folder; a file of weights; or a model with `.preprocess`, as
            `torchcaps.load` and `torchcaps.fit` return it.
        inputs: files, folders, tar archives and patterns such as "photos/*.jpg"; pictures of
            Pillow, arrays or tensors; one, several, or batches `[n, channels, height, width]`.
        device: "auto" leaves a model where it is.
        options: of `Predictor`, by name, such as `top_k=3`.

    Returns:
        For each picture a dictionary, see `Predictor`.

    Raises:
        RunError: for no run.
        DataError: for a path that is absent, holds no image, or cannot be read as one.
        ArgumentError: for a model without preprocessing, or an option that does not fit the model.

    Example:
        >>> [row] = tc.predict("runs/capsnet-digits", "photo.png")
        >>> row["label"], row["activation"], row["probability"]
        ("7", 0.912, 0.997)
    """
    return Predictor(model_or_run, device=device, **options)(inputs)


@dataclass(eq=False, repr=False)
class Predictor:
    """A trained model as a function of pictures, for use anywhere, such as Ray's `map_batches`.

    Calls do not depend on each other. The model is loaded by the first call. A pickle holds the
    path of the run and the options, but no weights, so it is small; it needs the run folder where
    it is unpickled. (Of a module, the pickle holds the module.)

    A prediction is a dictionary, ready for JSON: "path" of a file, and what the task says of a
    picture. Of a classifier "label", its "activation" and "activations" by class, the largest
    first: of capsules a length, not a probability. Where held-out images have calibrated the model,
    as in every training, also "probability" and "probabilities", of sum 1 over all classes.
    "changes" says what was done to bring the picture into the form of gray training images, such as
    "inverted, cropped and centered"; nothing is done to one that has it. What looks like none of
    them has the label "unknown", what shows nothing "empty"; "reason" says why, and there is no
    probability.

    Args:
        run: a run, or its folder; a file of weights; "hf:OWNER/NAME"; or a model with
            `.preprocess`.
        device: "cpu", "cuda", ...; "auto" takes the best there is, and leaves a module where it is.
        batch_size: number of pictures that are read at a time, at least 1.
        top_k: number of classes in "activations" and "probabilities"; None for all.
        unknown_below: a picture whose largest activation is below this has the label "unknown"; in
            [0, 1]. "auto" is the threshold of the calibration, which rejects 5 % of the held-out
            images. None applies the limits of the calibration: the least activation, the least
            margin to the second class, and the largest error of the reconstruction.
        as_is: leave pictures as they are, but for size and channels.
        invert: "auto" inverts pictures that are dark on light, or light on dark, unlike the
            training images; "yes" inverts all, "no" none.
        output: a folder, made where it is missing, for what the task draws of each image file, such
            as masks.
        workers: number of processes that decode; 0 decodes in this one.

    Raises:
        RunError: for a path that does not exist.
        ArgumentError: for an option out of range.

    Example:
        >>> predictor = tc.Predictor("runs/capsnet-digits", unknown_below="auto")
        >>> labels = [row["label"] for row in predictor(["7.png", "photos/"])]
    """

    run: ModelOrRun
    device: str = "auto"
    _: KW_ONLY
    batch_size: int = BATCH
    top_k: int | None = None
    unknown_below: float | str | None = None
    as_is: bool = False
    invert: str = "auto"
    output: StrPath | None = None
    workers: int = 0

    def __post_init__(self) -> None:
        check_range("batch_size", self.batch_size, low=1)
        check_range("workers", self.workers, low=0)
        if self.top_k is not None:
            check_positive(top_k=self.top_k)
        check_known("invert", self.invert, ("auto", "yes", "no"))
        below = self.unknown_below
        if below not in (None, "auto"):
            if isinstance(below, str):
                raise ArgumentError("unknown_below", f'expected a number or "auto", got {below!r}')
            check_range("unknown_below", below, low=0, high=1)
        if isinstance(self.run, str | PathLike):
            self.run = local_path(self.run)
            if not self.run.exists():
                raise RunError(f"{self.run}: no such run folder or model file")
        else:
            check_module(self.run)

    def __call__(self, inputs: Inputs) -> list[Row]:
        """Predict pictures.

        Args:
            inputs: as `predict` takes them.

        Returns:
            A prediction of each, in order.

        Raises:
            RunError: for no run.
            DataError: for the first input that cannot be read.
            ArgumentError: for an option that does not fit the model.
        """
        return list(self.stream(inputs))

    def stream(
        self, inputs: Inputs, on_error: Callable[[DataError], None] | None = None
    ) -> Iterator[Row]:
        """Predict any number of pictures in constant memory.

        Args:
            inputs: as `predict` takes them; an iterable may be endless.
            on_error: called for each input that cannot be read, which is then left out; None raises
                its error.

        Yields:
            A prediction of each, in order.

        Raises:
            RunError: for no run.
            DataError: for an input that cannot be read, unless `on_error` takes it.
            ArgumentError: for an option that does not fit the model.
        """
        ranks = current()
        is_dense = self.task.is_dense
        if self.output is not None:
            if not is_dense:
                raise ArgumentError(
                    "output", f"the task {self.task.name} draws nothing of single pictures"
                )
            Path(self.output).mkdir(parents=True, exist_ok=True)
        elements = list_inputs(inputs, model_metadata(self.task.model).preprocess)
        if is_dense:
            elements = _name_outputs(elements)
        # A task of pixels takes each image in its own size, which may be large: one at a time.
        shares = _batches(elements, 1 if is_dense else self.batch_size)
        # "inputs" is what an error of the workers calls them.
        for batch in decode_batches(_decoder(self), shares, self.workers, "inputs"):
            for outcomes in ranks.gather(self._predict(batch)):
                for outcome in outcomes:
                    if not isinstance(outcome, DataError):
                        yield outcome
                    elif on_error is None:
                        raise outcome
                    else:
                        on_error(outcome)

    @cached_property
    def task(self) -> Task:
        """The task around the model, which is loaded when it is first asked for."""
        model = load_model(self.run, self.device)
        metadata = model_metadata(model)
        if not isinstance(metadata.preprocess, Preprocess):
            raise ArgumentError(
                "model", "expected .preprocess, as torchcaps.load gives it, got none"
            )
        return task_class(metadata.task, model)(model)

    @cached_property
    def calibration(self) -> HeldOutCalibration | None:
        """The calibration of the model; None where it has none."""
        kept = model_metadata(self.task.model).calibration
        return None if kept is None else HeldOutCalibration.from_dict(kept)

    def __getstate__(self) -> Json:
        """Path and options, without what was loaded."""
        state = dict(vars(self))
        for name in ("task", "calibration"):
            state.pop(name, None)
        if isinstance(self.run, Path):
            state["run"] = self.run.resolve()
        return state

    def outcomes(self, batch: list[Input]) -> list[Row | DataError]:
        """Predictions and errors of inputs, in their order.

        Args:
            batch: what goes through the model together; of a task of pixels, one input. With
                `output`, which must be there, each has an `output_name` of its own.

        Returns:
            The prediction of each, or why it cannot be read.
        """
        return self._predict(_decoder(self)(batch))

    def _predict(self, batch: list[Input]) -> list[Row | DataError]:
        """Predictions and errors of inputs that were decoded, in their order."""
        outcomes: list[Any] = [element.source for element in batch]
        groups: dict[Any, list[int]] = {}  # by shape
        for index, source in enumerate(outcomes):
            if not isinstance(source, DataError):
                groups.setdefault(source.shape, []).append(index)
        for indices in groups.values():
            rows = self._predict_group([batch[index] for index in indices])
            for index, row in zip(indices, rows, strict=True):
                name = batch[index].name
                outcomes[index] = row if name is None else {"path": name} | row
        return outcomes

    def _predict_group(self, batch: list[Input]) -> list[Row]:
        """Predictions of inputs of one shape."""
        task = self.task
        sources: list[Any] = [element.source for element in batch]
        images = torch.from_numpy(np.stack(sources))
        with eval_mode(task.model), torch.inference_mode():
            if task.is_dense:
                from torchcaps.tasks.masks import predict_masks

                names = [element.output_name for element in batch]
                preprocess = model_metadata(task.model).preprocess
                folder = None if self.output is None else Path(self.output)
                rows = predict_masks(task, images, names, preprocess, folder)
            else:
                rows = task.predict(images.to(device_of(task.model)))
            return _complete(rows, images, batch, self)


def columns(row: Row, top_k: int = 1) -> Row:
    """A prediction as a row of a table: its numbers and names, without nested parts.

    Args:
        row: of `Predictor`.
        top_k: number of classes of a classifier. The second class has the columns "label_2",
            "activation_2" and, of a calibrated run, "probability_2"; and so on.
    """
    cells = {}
    for name, cell in row.items():
        if not isinstance(cell, dict | list):
            cells[name] = cell
        elif name == "activations":
            cells["probability"] = row.get("probability")
    for rank, label in enumerate(islice(row.get("activations", ()), 1, top_k), start=2):
        cells[f"label_{rank}"] = label
        cells[f"activation_{rank}"] = row["activations"][label]
        cells[f"probability_{rank}"] = row.get("probabilities", {}).get(label)
    return cells


def _complete(
    rows: list[Row], images: Tensor, batch: list[Input], predictor: Predictor
) -> list[Row]:
    """Add probabilities and doubts, by the options of a predictor, where there are classes."""
    threshold: Any = predictor.unknown_below
    if "activations" not in rows[0]:
        for option in ("top_k", "unknown_below"):
            if getattr(predictor, option) is not None:
                raise ArgumentError(option, "this task gives no activations of classes")
        return rows
    if predictor.top_k is not None:
        check_range("top_k", predictor.top_k, low=1, high=len(rows[0]["activations"]))
    calibration = predictor.calibration
    if threshold == "auto":
        if calibration is None:
            raise ArgumentError(
                "unknown_below",
                "auto needs a calibrated model, as a training leaves it; give a number",
            )
        threshold = calibration.threshold
    limits = calibration.limits if calibration and threshold is None else {}
    errors = [0.0] * len(rows)
    if "error" in limits.get("changed", ()):
        errors = reconstruction_distances(predictor.task.model, images).tolist()
    completed_rows = []
    for row, element, error in zip(rows, batch, errors, strict=True):
        activations = row["activations"]
        row["activations"] = dict(islice(activations.items(), predictor.top_k))
        lengths = list(activations.values())
        first = row["activation"]
        figures = {"length": first, "margin": first - max(lengths[1:], default=0.0), "error": error}
        reason = element.problem
        if not reason and threshold is not None and first < threshold:
            reason = f"its largest activation {first:.3g} is below {threshold:.3g}"
        reason = reason or doubt(
            figures, limits.get("changed" if element.changes else "unchanged", {})
        )
        row |= {"changes": element.changes, "reason": reason}
        if reason:
            row["label"] = EMPTY if reason == BLANK else UNKNOWN
        completed = {"label": row["label"], "activation": row["activation"]}
        if calibration is not None and not reason:
            [probabilities] = calibration.probabilities(torch.tensor([lengths])).tolist()
            completed["probability"] = probabilities[0]
            row["probabilities"] = dict(zip(row["activations"], probabilities, strict=False))
        completed_rows.append(completed | row)
    return completed_rows


def _name_outputs(elements: Iterator[Input]) -> Iterator[Input]:
    """The inputs of a task of pixels with names for the files that are drawn of them."""
    unique_name = UniqueNames()
    for index, element in enumerate(elements):
        stem = f"image_{index}" if element.name is None else Path(element.name).stem
        yield element._replace(output_name=unique_name(stem))


def _batches(elements: Iterator[Input], size: int) -> Iterator[list[Input]]:
    """The part of this process of each batch, which all processes predict together."""
    ranks = current()
    while batch := list(islice(elements, size * ranks.world_size)):
        yield batch[ranks.shard(len(batch))]


def _decoder(predictor: Predictor) -> Callable[[list[Input]], list[Input]]:
    """A function that makes of inputs what the model of a predictor takes."""
    task = predictor.task
    preprocess = model_metadata(task.model).preprocess
    if predictor.as_is:
        preprocess = replace(preprocess, form=None)
    if task.is_dense and predictor.invert != "auto":
        raise ArgumentError("invert", f"the task {task.name} takes pictures as they are")
    return partial(_decode, preprocess, task.is_dense, predictor.invert)


def _decode(preprocess: Preprocess, is_dense: bool, invert: str, batch: list[Input]) -> list[Input]:
    """Inputs as the model takes them, or, for a task of pixels, in their own size.

    The sources become arrays, as tensors of other processes need shared memory, or errors.
    """
    decoded = []
    for element in batch:
        source: Any = element.source
        try:
            if isinstance(source, DataError):
                pass
            elif is_dense and preprocess.is_picture:
                source = read_picture(source, None, preprocess.in_chans, element.name)[0].numpy()
            else:
                prepared = preprocess.prepare(source, element.name, invert)
                source = prepared.pixels.numpy()
                element = element._replace(changes=prepared.changes, problem=prepared.problem)
        except DataError as error:
            source = error.with_traceback(None)
        decoded.append(element._replace(source=source))
    return decoded


def json_lines(stream: TextIO) -> Writer:
    """A function that writes a prediction as a JSON object on a line of its own."""
    return lambda row: print(json.dumps(row, allow_nan=False), file=stream)


def csv_lines(stream: TextIO, top_k: int = 1) -> Writer:
    """A function that writes a prediction as a line of a CSV, the first one after a header.

    All predictions must have the columns of the first.

    Args:
        stream: open for text, without conversion of line breaks.
        top_k: number of classes of a classifier.
    """
    writer: csv.DictWriter[str] | None = None

    def write(row: Row) -> None:
        nonlocal writer
        cells = {
            name: f"{cell:.{DIGITS}g}" if isinstance(cell, float) else cell
            for name, cell in columns(row, top_k).items()
        }
        if writer is None:
            writer = csv.DictWriter(stream, list(cells), lineterminator="\n")
            writer.writeheader()
        writer.writerow(cells)

    return write


@contextmanager
def open_row_file(path: Path, top_k: int = 1) -> Iterator[Writer]:
    """A context with a function that writes predictions to a file.

    The file appears at the end of the context, and not at all after an error.

    Args:
        path: ends in .csv, .jsonl or .parquet; missing folders are made. Parquet has the columns
            of a CSV.
        top_k: number of classes of a classifier in a table.

    Raises:
        ArgumentError: for another ending.
        ImportError: Parquet without pyarrow.
        RunError: there is such a file already, or its folder cannot be made.
        TrainingError: when it is left, if the file cannot be written.
    """
    ending = path.suffix.lower()
    if ending not in (".csv", ".jsonl", ".parquet"):
        raise ArgumentError(str(path), "expected a file ending in .csv, .jsonl or .parquet")
    if ending == ".parquet" and find_spec("pyarrow") is None:
        raise ImportError("Parquet needs pyarrow: pip install 'torchcaps[parquet]'")
    if path.exists():
        raise RunError(f"{path}: exists already; remove it, or name another file")
    make_folder(path.parent)
    with atomic(path) as temporary:
        if ending == ".parquet":
            with _parquet_rows(temporary, top_k) as write:
                yield write
            return
        with open(temporary, "w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
            yield csv_lines(stream, top_k) if ending == ".csv" else json_lines(stream)


@contextmanager
def _parquet_rows(path: Path, top_k: int) -> Iterator[Writer]:
    """A function that writes predictions to a Parquet file, in groups of `ROW_GROUP`."""
    import pyarrow as pa
    from pyarrow import parquet

    rows: list[Row] = []
    writer: Any = None

    def flush() -> None:
        nonlocal writer
        table = pa.Table.from_pylist(rows, writer and writer.schema)
        if writer is None:
            # The first rows may have no probability; no other column may be empty.
            schema = [
                field.with_type(pa.float64()) if field.type == pa.null() else field
                for field in table.schema
            ]
            table = table.cast(pa.schema(schema))
            writer = parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
        rows.clear()

    def write(row: Row) -> None:
        rows.append(columns(row, top_k))
        if len(rows) == ROW_GROUP:
            flush()

    try:
        yield write
        if rows or writer is None:
            flush()
    finally:
        if writer is not None:
            writer.close()

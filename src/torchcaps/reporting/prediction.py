"""Predictions of a trained model for pictures: as a list, or one by one for any number of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from torchcaps.data import Preprocess, decode_image
from torchcaps.data.files import decode_batches
from torchcaps.data.inputs import batched, list_inputs
from torchcaps.distributed import current
from torchcaps.errors import ArgumentError, DataError, RunError, check_positive, check_range
from torchcaps.evaluation import HeldOutCalibration
from torchcaps.evaluation.base import BATCH
from torchcaps.evaluation.forward import device_of, evaluating
from torchcaps.reporting.subject import ModelOrRun, load_model, path_of
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task, create_task
from torchcaps.tasks.masks import predict_masks
from torchcaps.training.calibration import read_calibration
from torchcaps.training.run import CALIBRATION_FILE
from torchcaps.types import model_metadata

Inputs = Any  # of `list_inputs`
Row = dict[str, Any]
MAX_NAME_BYTES = 150  # of an output; file systems take 255 with what is added
UNKNOWN = "unknown"  # label of an image of no known class


def predict(
    model_or_run: ModelOrRun, inputs: Inputs, *, device: str = "auto", **options: Any
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
        ArgumentError: for a model without preprocessing, an option that does not fit the model, or
            arrays for a task of pixels.

    Example:
        >>> [row] = tc.predict("runs/capsnet-digits", "photo.png")
        >>> row["label"], row["activation"], row["probability"]
        ("7", 0.912, 0.997)
    """
    return Predictor(model_or_run, device=device, **options)(inputs)


class Predictor:
    """A trained model as a function of pictures, for use anywhere, such as Ray's `map_batches`.

    Calls do not depend on each other. The model is loaded by the first call. A pickle holds the
    path of the run and the options, but no weights, so it is small; it needs the run folder where
    it is unpickled. (Of a module, the pickle holds the module.)

    A prediction is a dictionary, ready for JSON: "path" of a file, and what the task says of a
    picture. Of a classifier "label", its "activation" and "activations" by class, the largest
    first: of capsules a length, not a probability. Where held-out images have calibrated the run
    (`calibration.json` in its folder, which training leaves there), also "probability" and
    "probabilities", of sum 1 over all classes.

    Args:
        run: a run, or its folder; a file of weights; or a model with `.preprocess`.
        device: "cpu", "cuda", ...; "auto" takes the best there is, and leaves a module where it is.
        batch_size: number of pictures that are read at a time, at least 1.
        top_k: number of classes in "activations" and "probabilities"; None for all.
        unknown_below: a picture whose largest activation is below this has the label "unknown"; in
            [0, 1]. "auto" is the threshold of the calibration, which rejects 5 % of the held-out
            images. None for no threshold.
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

    def __init__(
        self,
        run: ModelOrRun,
        device: str = "cpu",
        *,
        batch_size: int = BATCH,
        top_k: int | None = None,
        unknown_below: float | str | None = None,
        output: str | Path | None = None,
        workers: int = 0,
    ) -> None:
        check_positive(batch_size=batch_size)
        check_range("workers", workers, low=0)
        if top_k is not None:
            check_positive(top_k=top_k)
        if unknown_below != "auto":
            _check_threshold(unknown_below)
        self.source = run if isinstance(run, nn.Module) else path_of(run)
        if isinstance(self.source, Path) and not self.source.exists():
            raise RunError(f"{self.source}: no such run folder or model file")
        self.device = device
        self.batch_size = batch_size
        self.top_k = top_k
        self.unknown_below = unknown_below
        self.output = None if output is None else Path(output)
        self.workers = workers

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
        self,
        inputs: Inputs,
        on_error: Callable[[DataError], None] | None = None,
        is_done: Callable[[str], bool] | None = None,
    ) -> Iterator[Row]:
        """Predict any number of pictures in constant memory.

        Args:
            inputs: as `predict` takes them; an iterable may be endless.
            on_error: called for each input that cannot be read, which is then left out; None raises
                its error.
            is_done: whether the file of a path is left out.

        Yields:
            A prediction of each, in order.

        Raises:
            RunError: for no run.
            DataError: for an input that cannot be read, unless `on_error` takes it.
            ArgumentError: for an option that does not fit the model.
        """
        if self.output is not None:
            if not self.task.is_dense:
                raise ArgumentError(
                    "output", f"the task {self.task.name} draws nothing of single pictures"
                )
            self.output.mkdir(parents=True, exist_ok=True)
        ranks = current()
        batch_size = 1 if self.task.is_dense else self.batch_size  # whole images may be large
        jobs = _list_jobs(inputs, self.task, self.preprocess, is_done)
        shards = (
            batch[ranks.shard(len(batch))] for batch in batched(jobs, batch_size * ranks.world_size)
        )
        decoder = _Decoder(self.preprocess, self.task.is_dense)
        for batch in decode_batches(decoder, shards, self.workers, "inputs"):
            for outcome in chain.from_iterable(ranks.gather(self._predict(batch))):
                if not isinstance(outcome, DataError):
                    yield outcome
                elif on_error is None:
                    raise outcome
                else:
                    on_error(outcome)

    @cached_property
    def task(self) -> Task:
        """The task around the model, which is loaded when it is first asked for."""
        model = load_model(self.source, self.device)
        metadata = model_metadata(model)
        if not isinstance(metadata.preprocess, Preprocess):
            raise ArgumentError(
                "model", "expected .preprocess, as torchcaps.load gives it, got none"
            )
        return create_task(model, TrainConfig.of(task=metadata.task))

    @property
    def preprocess(self) -> Preprocess:
        """What is applied to an input before the model."""
        preprocess: Preprocess = model_metadata(self.task.model).preprocess
        return preprocess

    @cached_property
    def calibration(self) -> HeldOutCalibration | None:
        """The calibration of the run; None where it has none."""
        return None if isinstance(self.source, nn.Module) else read_calibration(self.source)

    @cached_property
    def threshold(self) -> float | None:
        """Largest activation below which the label is "unknown"; None for no such threshold."""
        if not isinstance(self.unknown_below, str):
            return self.unknown_below
        if self.calibration is None:
            raise ArgumentError(
                "unknown_below",
                f"auto needs a run with {CALIBRATION_FILE}, which training leaves in its folder, "
                f"and {_describe(self.source)} has none; give a number",
            )
        return self.calibration.threshold

    def __getstate__(self) -> dict[str, Any]:
        """Path and options, without what was loaded."""
        state = dict(vars(self))
        for name in ("task", "calibration", "threshold"):
            state.pop(name, None)
        if isinstance(self.source, Path):
            state["source"] = self.source.resolve()
        return state

    def _predict(self, batch: _Batch) -> list[Row | DataError]:
        """Predictions and errors of a batch, in its order."""
        task = self.task
        rows: Iterator[Row] = iter(())
        if batch.images is not None:
            images = torch.from_numpy(batch.images)
            with evaluating(task.model):
                if task.is_dense:
                    names = batch.output_names
                    drawn = predict_masks(task, images, names, self.preprocess, self.output)
                    rows = iter(drawn)
                else:
                    answers = task.predict(images.to(device_of(task.model)))
                    rows = iter(self._complete(answers))
        outcomes: list[Row | DataError] = []
        for name, error in zip(batch.names, batch.errors, strict=True):
            if error is not None:
                outcomes.append(error)
            elif name is None:
                outcomes.append(next(rows))
            else:
                outcomes.append({"path": name} | next(rows))
        return outcomes

    def _complete(self, rows: list[Row]) -> list[Row]:
        """Add probabilities, and apply `top_k` and `unknown_below`, where there are classes."""
        if "activations" in rows[0]:
            return complete_rows(rows, self.calibration, self.threshold, self.top_k)
        for option in ("top_k", "unknown_below"):
            if getattr(self, option) is not None:
                raise ArgumentError(
                    option, f"the task {self.task.name} gives no activations of classes"
                )
        return rows


def complete_rows(
    rows: list[Row],
    calibration: HeldOutCalibration | None,
    threshold: float | None,
    top_k: int | None,
) -> list[Row]:
    """Predictions of a classifier with probabilities and unknown classes.

    Args:
        rows: each with "label", "activation", and "activations" by class, the largest first.
        calibration: gives the probabilities; None adds none.
        threshold: the label of a smaller activation becomes "unknown"; None changes no label.
        top_k: number of classes that are kept; None for all.

    Raises:
        ArgumentError: there are fewer classes than `top_k`.
    """
    activations = torch.tensor([[*row["activations"].values()] for row in rows])
    if top_k is not None:
        check_range("top_k", top_k, low=1, high=activations.shape[1])
    probabilities: list[list[float]] = [[] for _ in rows]
    if calibration is not None:
        probabilities = calibration.probabilities(activations).tolist()

    completed_rows = []
    for row, class_probabilities in zip(rows, probabilities, strict=True):
        label = row["label"]
        if threshold is not None and row["activation"] < threshold:
            label = UNKNOWN
        classes = [*row["activations"]][:top_k]
        completed = {"label": label, "activation": row["activation"]}
        if class_probabilities:
            completed["probability"] = class_probabilities[0]
        completed |= {name: part for name, part in row.items() if name not in completed}
        completed["activations"] = {name: row["activations"][name] for name in classes}
        if class_probabilities:
            completed["probabilities"] = dict(zip(classes, class_probabilities, strict=False))
        completed_rows.append(completed)
    return completed_rows


class _Job(NamedTuple):
    """An input to decode."""

    name: str | None  # of the file
    source: Any  # see `Input`
    output_name: str  # of files that are drawn


class _Batch(NamedTuple):
    """Inputs that go through the model together; arrays, as tensors need shared memory."""

    names: list[str | None]
    errors: list[DataError | None]  # by input
    output_names: list[str]  # of the inputs without an error
    images: np.ndarray | None  # of the inputs without an error, `[n, channels, height, width]`


def _list_jobs(
    inputs: Inputs, task: Task, preprocess: Preprocess, is_done: Callable[[str], bool] | None
) -> Iterator[_Job]:
    """The inputs that are not done, each with the name of the files that are drawn of it."""
    unique_name = UniqueNames()
    for name, source in list_inputs(inputs, preprocess):
        output_name = ""
        if task.is_dense:
            if name is None:
                raise ArgumentError("inputs", f"the task {task.name} takes image files")
            output_name = unique_name(Path(name).stem)
        if name is None or is_done is None or not is_done(name):
            yield _Job(name, source, output_name)


class _Decoder(Dataset[_Batch]):
    """Decodes batches as the model takes them, or, for a task of pixels, in their own size."""

    def __init__(self, preprocess: Preprocess, is_dense: bool) -> None:
        self.preprocess = preprocess
        self.is_dense = is_dense

    def __getitems__(self, jobs: list[_Job]) -> _Batch:
        names: list[str | None] = []
        errors: list[DataError | None] = []
        output_names: list[str] = []
        images: list[np.ndarray] = []
        for job in jobs:
            names.append(job.name)
            try:
                images.append(self._decode(job).numpy())
            except DataError as error:
                errors.append(error.with_traceback(None))
            else:
                errors.append(None)
                output_names.append(job.output_name)
        return _Batch(names, errors, output_names, np.stack(images) if images else None)

    def _decode(self, job: _Job) -> Tensor:
        if isinstance(job.source, DataError):
            raise job.source
        if self.is_dense:
            return decode_image(job.source, None, self.preprocess.in_chans, name=job.name)
        return self.preprocess(job.source, job.name)


def _check_threshold(unknown_below: float | str | None) -> None:
    """Raise ArgumentError unless a threshold is None or a number in [0, 1]."""
    if isinstance(unknown_below, str):
        raise ArgumentError("unknown_below", f'expected a number or "auto", got {unknown_below!r}')
    if unknown_below is not None:
        check_range("unknown_below", unknown_below, low=0, high=1)


def _describe(source: nn.Module | Path) -> str:
    """A model in an error: the path of its run, or its class."""
    return str(source) if isinstance(source, Path) else type(source).__name__


class UniqueNames:
    """Names, with a number after one that was there before, in whatever case.

    Some file systems do not tell capitals from small letters. All have a longest name: the end of
    one of more than 150 bytes is cut off.
    """

    def __init__(self) -> None:
        self.taken: set[str] = set()  # in small letters

    def __call__(self, name: str) -> str:
        """The name, or `NAME-2`, `NAME-3`, ... where it is taken."""
        name = os.fsencode(name)[:MAX_NAME_BYTES].decode(errors="ignore")
        candidate = name
        numbers = count(2)
        while candidate.lower() in self.taken:
            candidate = f"{name}-{next(numbers)}"
        self.taken.add(candidate.lower())
        return candidate

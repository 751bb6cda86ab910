"""Predictions by Ray Data, on the processors of one machine or of a cluster."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from logging import ERROR, getLogger
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from torch import nn

from torchcaps import plugins
from torchcaps.data.inputs import Input, list_inputs
from torchcaps.errors import ArgumentError, DataError, RunError, check_packages, one_line
from torchcaps.reporting.prediction import Inputs, Predictor, Row
from torchcaps.training.checkpoint import model_file
from torchcaps.training.files import MODEL_FILE
from torchcaps.types import model_metadata

Texts = dict[str, np.ndarray]  # a column of JSON


class Worker:
    """A predictor in a process of Ray.

    Args:
        predictor: whose run need not be visible here.
        device: that it works on.
        weights: content of the file of weights.
        modules: to import first, which register things of the user's own.
    """

    def __init__(
        self, predictor: Predictor, device: str, weights: bytes, modules: list[str]
    ) -> None:
        for name in modules:
            plugins.import_module(name)
        with TemporaryDirectory() as folder:
            Path(folder, MODEL_FILE).write_bytes(weights)
            self.predictor = replace(predictor, run=folder, device=device)
            # Loaded now, while the files are there.
            self.loaded = self.predictor.task, self.predictor.calibration

    def __call__(self, batch: Texts) -> Texts:
        """Predict image files.

        Args:
            batch: "input", name, path and error of each, as JSON.

        Returns:
            "outcome", the prediction of each, or the text of its error, as JSON.
        """
        inputs = [
            Input(name, path if error is None else DataError(error))
            for name, path, error in map(json.loads, batch["input"])
        ]
        texts = [
            json.dumps(str(outcome) if isinstance(outcome, DataError) else outcome)
            for outcome in self.predictor.outcomes(inputs)
        ]
        return {"outcome": np.array(texts)}


def stream(
    predictor: Predictor,
    inputs: Inputs,
    on_error: Callable[[DataError], None] | None = None,
    *,
    workers: int = 0,
    address: str | None = None,
) -> Iterator[Row]:
    """Predict any number of image files as `Predictor.stream` does, by the workers of Ray Data.

    Ray runs what a worker had begun again when the worker is lost. Images are read by the workers;
    the weights of the run go with the job.

    Args:
        predictor: of a run.
        inputs: files, folders and patterns, which all workers see.
        on_error: called for each input that cannot be read; None raises its error.
        workers: their number; 0 takes one for each GPU, or, where there is none, each processor.
        address: of a cluster, or "auto"; None starts Ray on this machine, until all is done.

    Yields:
        A prediction of each, in order.

    Raises:
        ArgumentError: ray is missing, an input is no file, or a predictor of a model in memory or
            with an output folder.
        DataError: for an input that cannot be read, unless `on_error` takes it.
        RunError: Ray cannot be reached, or a worker failed.
    """
    check_packages("engine", "ray", "ray")
    if isinstance(predictor.run, nn.Module) or predictor.output is not None:
        raise ArgumentError("engine", "ray takes a run, and draws no pictures")
    import ray
    from ray.data import ActorPoolStrategy, DataContext, from_arrow

    weights = model_file(Path(predictor.run)).read_bytes()
    getLogger("ray.data").setLevel(ERROR)  # else it tells of itself
    try:
        ray.init(
            address or "local",
            num_cpus=None if address else workers or None,
            log_to_driver=False,
            logging_level="error",
        )
        resources = ray.cluster_resources()
        device = predictor.device
        if device == "auto":
            device = "cuda" if "GPU" in resources else "cpu"
        kind = "CPU" if device == "cpu" else "GPU"
        if kind not in resources:
            raise ArgumentError("device", f"expected cpu, as Ray has no GPU here, got {device}")
        context = DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        outcomes = from_arrow(_read_blocks(predictor, inputs)).map_batches(
            Worker,
            batch_size=1 if predictor.task.is_dense else predictor.batch_size,
            compute=ActorPoolStrategy(size=workers or int(resources[kind])),
            num_gpus=int(kind == "GPU"),
            fn_constructor_args=(predictor, device, weights, plugins.imported()),
        )
        for batch in outcomes.iter_batches(batch_size=None):
            for outcome in map(json.loads, batch["outcome"]):
                if not isinstance(outcome, str):
                    yield outcome
                elif on_error is None:
                    raise DataError(outcome)
                else:
                    on_error(DataError(outcome))
    except (ray.exceptions.RayError, ConnectionError) as error:
        raise RunError(f"ray: {one_line(str(error))}") from error
    finally:
        ray.shutdown()


def _read_blocks(predictor: Predictor, inputs: Inputs) -> list[Any]:
    """Tables of Arrow with the inputs of a batch each, as JSON."""
    import pyarrow

    texts = map(_as_text, list_inputs(inputs, model_metadata(predictor.task.model).preprocess))
    blocks = []
    while column := list(islice(texts, predictor.batch_size)):
        blocks.append(pyarrow.table({"input": column}))
    return blocks


def _as_text(element: Input) -> str:
    """Name, absolute path and error of an input, as JSON."""
    if isinstance(element.source, DataError):
        return json.dumps([element.name, None, str(element.source)])
    if not isinstance(element.source, str):
        raise ArgumentError("inputs", f"expected files for ray, got {element.name or 'a picture'}")
    return json.dumps([element.name, os.path.abspath(element.source), None])

"""torchcaps predict."""

import glob
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import tyro

import torchcaps as tc
from torchcaps.cli.console import UsageError, counting, note, print_json, print_table, usage
from torchcaps.cli.flags import RARE, Device
from torchcaps.cli.imports import hinted
from torchcaps.errors import one_line

HEADS = {"path": "image", "label": "class"}  # of the columns of predictions
SCREEN = 256  # rows of text that are aligned together
Row = dict[str, Any]
NO_DEFAULT = tyro.conf.arg(help_behavior_hint="")  # in the help
Switch = Annotated[bool, tyro.conf.FlagCreatePairsOff, NO_DEFAULT]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]


@dataclass(frozen=True)
class ResultFormat:
    """Where predictions go; without one of these, a table of text to stdout.

    Attributes:
        json: Print one JSON document at the end: for each image its path and all outputs of the
            task; for a classifier, the activations of all classes.
        jsonl: Print the same as a JSON object a line, as they come.
        csv: Print a CSV with a header, as they come.
        parquet: Parquet file to write; needs pyarrow.
        output_file: File to write, ending in .csv or .jsonl; it is there when all images are done.
    """

    json: Switch = False
    jsonl: Switch = False
    csv: Switch = False
    parquet: File = None
    output_file: File = None


def predict(
    paths: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="[RUN] IMAGE...", help_behavior_hint=""),
    ],
    /,
    results: ResultFormat = ResultFormat(),
    top_k: int | None = None,
    unknown_below: Annotated[str | None, tyro.conf.arg(metavar="T|auto")] = None,
    device: Device = "auto",
    output: Path | None = None,
    batch_size: Annotated[int, RARE] = 256,
    workers: Annotated[int, RARE] = 0,
) -> int:
    """Apply a trained model to images: files, folders, patterns, tar archives.

    For a classifier: the class, its activation, which for capsules is a length and not a
    probability, and, where held-out images have calibrated the run, its probability. Images that
    cannot be read are listed and skipped; the exit status is then 1.

    Example: torchcaps predict runs/capsnet-digits photo.png folder/ "more/*.jpg" --csv

    Args:
        paths: A run folder or a model.safetensors file, then image files, folders, tar archives or
            patterns in quotes. Without a run, a network for digits that comes with the package is
            used.
        top_k: Number of classes to give for each image; by default one, and all in JSON.
        unknown_below: An image whose largest activation (a length, for capsules) is below this
            gets the class "unknown"; auto takes the threshold that rejects 5 % of the held-out
            images of the run.
        output: Folder for pictures of the task for each image, such as masks and overlays of a
            model that classifies pixels.
        batch_size: Images that go through the model together.
        workers: Processes that decode images; 0 decodes in this one.
    """
    run, inputs = _split_paths(paths)
    _check_processes(results)
    with usage():
        predictor = tc.Predictor(
            run,
            device,
            batch_size=batch_size,
            top_k=top_k,
            unknown_below=_parse_threshold(unknown_below),
            output=output,
            workers=workers,
        )
    with hinted(run):
        task = predictor.task
    if "classes" in task.capabilities and predictor.calibration is None:
        note(f"{run}: has no calibration.json, so there are activations, but no probabilities")

    num_errors = 0

    def report(error: Exception) -> None:
        nonlocal num_errors
        num_errors += 1
        note(f"torchcaps: error: {error}")

    with _open_sink(results, top_k or 1) as write:
        for row in predictor.stream(inputs, report):
            write(row)
            sys.stdout.flush()
    if num_errors > 1:
        note(f"torchcaps: {num_errors} inputs were skipped")
    return 1 if num_errors else 0


def _split_paths(paths: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
    """The run, by default that of the package, and the inputs."""
    if not paths or _are_images(paths):
        run = tc.models.weights_file()
        inputs = paths
    else:
        run = Path(paths[0])
        inputs = paths[1:]
    if not inputs:
        raise UsageError("images: expected image files or folders after the run, got none")
    return run, inputs


def _are_images(paths: tuple[str, ...]) -> bool:
    """Whether the first path is an input, or the only one a folder that is no run folder."""
    path = Path(paths[0])
    if path.is_dir():
        return len(paths) == 1 and not tc.training.run.is_run(path)
    is_pattern = glob.has_magic(paths[0]) and not path.exists()
    is_archive = tc.data.inputs.is_archive(path)
    is_image = tc.data.images.is_image_name(path.name)
    return is_pattern or is_archive or is_image


def _check_processes(results: ResultFormat) -> None:
    """Raise UsageError for two formats, and for a file of several processes."""
    from torchcaps.distributed import current

    flags = [f"--{name.replace('_', '-')}" for name, choice in vars(results).items() if choice]
    if len(flags) > 1:
        raise UsageError(f"{flags[1]}: expected one format of the predictions, got {flags[0]} too")
    num_processes = current().world_size
    if num_processes > 1 and (results.output_file or results.parquet):
        raise UsageError(f"{flags[0]}: expected one process, got {num_processes}; take --csv")


def _parse_threshold(word: str | None) -> float | str | None:
    """The number that --unknown-below is given, or "auto"."""
    if word is None or word == "auto":
        return word
    try:
        return float(word)
    except ValueError:
        raise UsageError(f"--unknown-below: expected a number or auto, got {word}") from None


@contextmanager
def _open_sink(results: ResultFormat, top_k: int) -> Iterator[Callable[[Row], None]]:
    """A function that takes the predictions, one by one.

    Args:
        results: the format.
        top_k: number of classes of an image in a table.
    """
    from torchcaps.reporting import row_files

    if file := results.output_file or results.parquet:
        with usage():
            row_file = row_files.open_row_file(file, top_k)
        with row_file as write_row, counting("predicting") as progress:
            numbers = count(1)

            def write(row: Row) -> None:
                write_row(row)
                progress(next(numbers), None)

            yield write
    elif results.json:
        rows: list[Row] = []
        yield rows.append
        print_json(rows)
    elif results.jsonl:
        yield row_files.json_lines(sys.stdout)
    elif results.csv:
        yield row_files.csv_lines(sys.stdout, top_k)
    else:
        table = _Table(top_k)
        yield table.write
        table.flush()


class _Table:
    """Prints predictions in aligned columns, some at a time, each time with the heading."""

    def __init__(self, top_k: int) -> None:
        self.top_k = top_k
        self.rows: list[list[str]] = []

    def write(self, row: Row) -> None:
        """Print a prediction, with others."""
        from torchcaps.reporting.row_files import columns

        cells = columns(row, self.top_k)
        if not self.rows:
            self.rows.append([HEADS.get(name, name.replace("_", " ")) for name in cells])
        self.rows.append([_as_text(cell) for cell in cells.values()])
        if len(self.rows) > SCREEN:
            self.flush()

    def flush(self) -> None:
        """Print what was not printed yet."""
        if self.rows:
            print_table(self.rows)
        self.rows.clear()


def _as_text(cell: Any) -> str:
    """A number or a name for the eye."""
    return f"{cell:.3f}" if isinstance(cell, float) else one_line(str(cell))

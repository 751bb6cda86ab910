"""torchcaps predict."""

import glob
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import tyro

import torchcaps as tc
from torchcaps.cli.console import UsageError, counting, note, print_json, print_table, usage
from torchcaps.cli.flags import RARE, Device
from torchcaps.cli.imports import hinted
from torchcaps.errors import one_line

HEADS = {"path": "image", "label": "class"}  # of the columns of predictions
STDIN = "-"  # stands for paths on the standard input
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
        output_file: File to write, ending in .csv or .jsonl. What an earlier start left in it
            stays, and its images are skipped.
    """

    json: Switch = False
    jsonl: Switch = False
    csv: Switch = False
    parquet: File = None
    output_file: File = None


class Sink(NamedTuple):
    """Takes predictions, one by one."""

    write: Callable[[Row], None]
    is_done: Callable[[str], bool] | None = None  # whether it has the prediction of a path


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
        paths: A run folder or a model.safetensors file, then image files, folders, tar archives,
            patterns in quotes, or - for paths on the standard input, one a line. Without a run, a
            network for digits that comes with the package is used.
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
    _check_processes(results, inputs)
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

    with _open_sink(results, top_k or 1) as sink:
        for row in predictor.stream(_expand(inputs), report, sink.is_done):
            sink.write(row)
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
    return paths[0] == STDIN or is_pattern or is_archive or is_image


def _check_processes(results: ResultFormat, inputs: Sequence[str]) -> None:
    """Raise UsageError for two formats, and for what several processes cannot share."""
    from torchcaps.distributed import current

    formats = [name for name, choice in vars(results).items() if choice]
    flags = [f"--{name.replace('_', '-')}" for name in formats]
    if len(flags) > 1:
        raise UsageError(f"{flags[1]}: expected one format of the predictions, got {flags[0]} too")
    num_processes = current().world_size
    if num_processes == 1:
        return
    if results.output_file or results.parquet:
        raise UsageError(f"{flags[0]}: expected one process, got {num_processes}; take --csv")
    if STDIN in inputs:
        raise UsageError(f"{STDIN}: expected one process, got {num_processes}; name a folder")


def _parse_threshold(word: str | None) -> float | str | None:
    """The number that --unknown-below is given, or "auto"."""
    if word is None or word == "auto":
        return word
    try:
        return float(word)
    except ValueError:
        raise UsageError(f"--unknown-below: expected a number or auto, got {word}") from None


def _expand(inputs: Sequence[str]) -> Iterator[str]:
    """The inputs, with those on the standard input in the place of "-"."""
    for path in inputs:
        if path != STDIN:
            yield path
            continue
        for line in sys.stdin.buffer:
            name = os.fsdecode(line.rstrip(b"\r\n"))
            if name:
                yield name


@contextmanager
def _open_sink(results: ResultFormat, top_k: int) -> Iterator[Sink]:
    """Open what takes the predictions.

    Args:
        results: the format.
        top_k: number of classes of an image in a table.
    """
    row_files = tc.reporting.row_files
    if results.output_file or results.parquet:
        with _open_file(results, top_k) as sink:
            yield sink
    elif results.json:
        rows: list[Row] = []
        yield Sink(rows.append)
        print_json(rows)
    elif results.jsonl:
        yield Sink(_line_printer(row_files.JsonLines()))
    elif results.csv:
        yield Sink(_line_printer(row_files.Csv(top_k)))
    else:
        table = _Table(top_k)
        yield Sink(table.write)
        table.flush()


@contextmanager
def _open_file(results: ResultFormat, top_k: int) -> Iterator[Sink]:
    """Open a file of predictions; say what is in it when the work is interrupted."""
    with usage():
        row_file = _row_file(results, top_k)
    with counting("predicting") as progress, row_file:
        num_done = row_file.num_rows
        if num_done:
            note(f"{row_file.path}: has {num_done:,} predictions, whose images are skipped")

        def write(row: Row) -> None:
            row_file.write(row)
            progress(row_file.num_rows, None)

        try:
            yield Sink(write, row_file.is_done)
        except (KeyboardInterrupt, SystemExit):
            note(f"{row_file.path}: has {row_file.num_rows:,} predictions; start again to go on")
            raise


def _row_file(results: ResultFormat, top_k: int) -> Any:
    """The file that the command line names, not opened yet."""
    row_files = tc.reporting.row_files
    if results.parquet is not None:
        return row_files.ParquetFile(results.parquet, top_k)
    assert results.output_file is not None
    return row_files.open_row_file(results.output_file, top_k)


def _line_printer(line_format: Any) -> Callable[[Row], None]:
    """A function that prints predictions as lines, after their header."""
    is_first = True

    def write(row: Row) -> None:
        nonlocal is_first
        if is_first:
            sys.stdout.write(line_format.header(row))
        is_first = False
        sys.stdout.write(line_format.line(row))
        sys.stdout.flush()

    return write


class _Table:
    """Prints predictions in aligned columns, some at a time, each time with the heading."""

    def __init__(self, top_k: int) -> None:
        self.top_k = top_k
        self.rows: list[list[str]] = []

    def write(self, row: Row) -> None:
        """Print a prediction, with others."""
        cells = tc.reporting.row_files.columns(row, self.top_k)
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

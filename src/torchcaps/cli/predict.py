"""torchcaps predict."""

import glob
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal

import torchcaps as tc
from torchcaps.cli.console import UsageError, counting, note, print_json, print_table, usage
from torchcaps.cli.parser import RARE, Device, Flag, hinted

HEADS = {"path": "image", "label": "class"}  # of the columns of predictions
NO_INPUTS = "images: expected image files or folders after the run, got none"
SCREEN = 256  # rows of text that are aligned together
Row = dict[str, Any]
File = Annotated[Path | None, Flag(metavar="FILE")]


@dataclass(frozen=True, kw_only=True)
class ResultFormat:
    """Where predictions go; without one of these, a table of text to stdout.

    Attributes:
        json: Print one JSON document at the end: for each image its path and all outputs of the
            task; for a classifier, the activations of all classes.
        jsonl: Print the same, an object a line, as they come.
        csv: Print a CSV with a header, as they come.
        parquet: Parquet file to write; needs pyarrow.
        output_file: File to write, ending in .csv or .jsonl; it is there when all images are done.
    """

    json: bool = False
    jsonl: bool = False
    csv: bool = False
    parquet: File = None
    output_file: File = None


@dataclass(frozen=True, kw_only=True)
class Work:
    """Who predicts.

    Attributes:
        batch_size: Images that go through the model together.
        workers: Processes that decode images; 0 decodes in this one. With --engine, processes that
            predict; 0 takes one for each GPU or processor.
        engine: ray predicts by several processes, of this machine or of a cluster.
        address: With --engine ray, the cluster, such as auto or HOST:6379; by default this machine.
    """

    batch_size: Annotated[int, RARE] = 256
    workers: Annotated[int, RARE] = 0
    engine: Literal["ray"] | None = None
    address: Annotated[str | None, RARE] = None


def predict(
    paths: Annotated[Sequence[str], Flag(metavar="[RUN] IMAGE...")] = (),
    *,
    results: ResultFormat = ResultFormat(),
    top_k: int | None = None,
    unknown_below: Annotated[float | Literal["auto"] | None, Flag(metavar="T|auto")] = None,
    as_is: bool = False,
    invert: Literal["auto", "yes", "no"] = "auto",
    device: Device = "auto",
    output: Path | None = None,
    work: Work = Work(),
) -> int:
    """Apply a trained model to images: files, folders, patterns, tar archives.

    For a classifier: the class, its activation, which for capsules is a length and not a
    probability, and, where held-out images have calibrated the run, its probability. A picture is
    brought into the form of gray training images; the column "changes" says what was done. What
    looks like none of them is "unknown" or "empty", with its reason. Images that cannot be read are
    skipped, and end the command with status 1.

    Example: torchcaps predict runs/capsnet-digits photo.png "more/*.jpg" --csv

    Args:
        paths: A run folder or a model.safetensors file, then image files, folders, tar archives or
            patterns in quotes. Without a run: the packaged network for digits.
        top_k: Number of classes to give for each image; by default one, and all in JSON.
        unknown_below: An image whose largest activation (a length, for capsules) is below this
            gets the class "unknown"; auto rejects 5 % of the held-out images of the run. By default
            the limits of the calibration decide; with 0 every image has a class.
        as_is: Change only the size and channels of pictures.
        invert: auto inverts pictures that are dark on light, or light on dark, unlike the training
            images; yes inverts all, no none.
        output: Folder for pictures of the task for each image, such as masks and overlays of a
            model that classifies pixels.
    """
    from torchcaps.distributed import current
    from torchcaps.reporting.prediction import Predictor

    if work.address and not work.engine:
        raise UsageError("--address: expected --engine ray too")
    run, inputs = _split_paths(paths)
    flags = [f"--{name}".replace("_", "-") for name, choice in vars(results).items() if choice]
    if len(flags) > 1:
        raise UsageError(f"{flags[1]}: expected one format of the predictions, got {flags[0]} too")
    num_processes = current().world_size
    if num_processes > 1 and (results.output_file or results.parquet):
        raise UsageError(f"{flags[0]}: expected one process, got {num_processes}; take --csv")
    with usage():
        predictor = Predictor(
            run,
            device,
            batch_size=work.batch_size,
            top_k=top_k,
            unknown_below=unknown_below,
            as_is=as_is,
            invert=invert,
            output=output,
            workers=work.workers,
        )
    with hinted([run]):
        task = predictor.task
    if "classes" in task.capabilities and predictor.calibration is None:
        note(f"{run}: is not calibrated, so there are activations, but no probabilities")

    num_errors = 0

    def report(error: Exception) -> None:
        nonlocal num_errors
        num_errors += 1
        note(f"torchcaps: error: {error}")

    rows = predictor.stream(inputs, report)
    if work.engine is not None:
        from torchcaps.reporting import ray

        rows = ray.stream(predictor, inputs, report, workers=work.workers, address=work.address)
    with _open_sink(results, top_k or 1) as write:
        for row in rows:
            write(row)
            sys.stdout.flush()
    if num_errors > 1:
        note(f"torchcaps: {num_errors} inputs were skipped")
    return 1 if num_errors else 0


def _split_paths(paths: Sequence[str]) -> tuple[Path, Sequence[str]]:
    """The run, and the inputs; without a run, that of the package.

    The first path is an input by its name, or as the only one, a folder that is no run folder.
    """
    from torchcaps.data.images import ARCHIVES, SUFFIXES

    if not paths:
        raise UsageError(NO_INPUTS)
    path = Path(paths[0])
    name = path.name.lower()
    is_input = path.suffix.lower() in SUFFIXES or name.endswith(ARCHIVES)
    if path.is_dir():
        is_input = len(paths) == 1 and not tc.training.run.is_run(path)
    elif glob.has_magic(paths[0]) and not path.exists():
        is_input = True
    if is_input:
        return tc.models.weights_file(), paths
    if len(paths) == 1:
        raise UsageError(NO_INPUTS)
    return path, paths[1:]


@contextmanager
def _open_sink(results: ResultFormat, top_k: int) -> Iterator[Callable[[Row], None]]:
    """A function that takes the predictions, one by one.

    Args:
        results: the format.
        top_k: number of classes of an image in a table.
    """
    from torchcaps.reporting.prediction import columns, csv_lines, json_lines, open_row_file

    if file := results.output_file or results.parquet:
        if results.parquet is not None and file.suffix != ".parquet":
            raise UsageError(f"--parquet: expected a file ending in .parquet, got {file}")
        with ExitStack() as stack:
            with usage():
                write_row = stack.enter_context(open_row_file(file, top_k))
            progress = stack.enter_context(counting("predicting"))
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
        yield json_lines(sys.stdout)
    elif results.csv:
        yield csv_lines(sys.stdout, top_k)
    else:
        table: list[list[str]] = []

        def write(row: Row) -> None:
            cells = columns(row, top_k)
            if not table:
                table.append([HEADS.get(name, name.replace("_", " ")) for name in cells])
            table.append(list(map(_as_text, cells.values())))
            if len(table) > SCREEN:
                print_table(table)
                table.clear()

        yield write
        if table:
            print_table(table)


def _as_text(cell: Any) -> str:
    if isinstance(cell, float):
        return f"{cell:.3f}"
    return "" if cell is None else " ".join(str(cell).split())

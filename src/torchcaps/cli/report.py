"""Commands that look at a trained model: its figures, its report, what its capsules encode; export.

torchcaps evaluate, report, compare, diagnose, reconstruct, perturb, animate, explore and export.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import torchcaps as tc
from torchcaps.cli.console import (
    UsageError,
    announce,
    counting,
    note,
    note_next,
    note_without_plots,
    print_json,
    print_table,
    print_wrapped,
    show,
    sigterm_as_exit,
    usage,
)
from torchcaps.cli.parser import (
    Data,
    Device,
    Flag,
    Json,
    Root,
    Run,
    RunOrOurs,
    check_flag,
)


def evaluate(
    run: Run,
    *,
    data: Data = None,
    root: Root = None,
    split: Literal["test", "train"] = "test",
    skip_damaged: bool | None = None,
    label_column: str | None = None,
    label_separator: str | None = None,
    device: Device = "auto",
    output: Path | None = None,
    json: Json = False,
) -> None:
    """Measure a trained model on images that were not used in training, and write plots.

    For a classifier: accuracy overall and per class, loss, calibration.

    Example: torchcaps evaluate runs/capsnet-digits --json

    Args:
        split: Images of the test split or of the training split. Of a folder or file without
            splits that is not the one of the training, all images are measured.
        skip_damaged: Leave out image files that cannot be read.
        label_column: Column of a .csv with the labels, as in the training.
        label_separator: Text between the labels of an image in that column, as in the training.
        output: Folder for evaluation.json and plots; by default the run folder, or, for other data
            or another split, a folder of that name in it.
    """
    folder = output or tc.reporting.evaluation_folder(run, data, split)
    flags = {
        "skip_damaged": skip_damaged,
        "label_column": label_column,
        "label_separator": label_separator,
    }
    options = {name: setting for name, setting in flags.items() if setting is not None}
    with counting("evaluating") as progress:
        evaluation = tc.evaluate(
            run,
            data,
            root=root,
            split=split,
            device=device,
            output=folder,
            progress=progress,
            emit=note,
            **options,
        )
    show(json, evaluation.to_dict(), evaluation.table().lines, evaluation.summary)
    note_without_plots()
    note(f"figures and plots: {folder}")
    note_next(run, "report", "diagnose", "explore")


def report(
    runs: Sequence[Path] = (),
    *,
    output: Path | None = None,
    root: Root = None,
    device: Device = "auto",
    images: int = 10_000,
    diagnose: int = 64,
) -> None:
    """Write an HTML report of a run, or a comparison of several runs, as one file that works offline.

    Example: torchcaps report runs/capsnet-digits

    Args:
        runs: Run folders: one for a report, several for a comparison with the first.
        output: The file; by default report.html, or comparison.html, in the first run folder.
        images: Number of evenly spread test images for mistakes and pictures.
        diagnose: Number of random test images for the measures of routing; 0 leaves them out.
    """
    if not runs:
        raise UsageError("runs: expected one run folder or more, got none")
    _check_different(runs)
    check_flag("--images", images, low=1)
    check_flag("--diagnose", diagnose, low=0)
    if diagnose == 1:
        raise UsageError("--diagnose: expected 0 or at least 2, got 1")
    with counting("evaluating", "measuring routing and drawing") as progress:
        path = tc.report(
            runs,
            output,
            root=root,
            device=device,
            images=images,
            diagnose=diagnose,
            progress=progress,
        )
    print(path)
    note_next(runs[0], "explore", "diagnose", "export")


def compare(
    runs: Sequence[Path] = (),
    *,
    others: Annotated[Sequence[Path], Flag(name="with", is_list=True)] = (),
    paired: bool = False,
    margin: str = "10%",
    adjust: Annotated[Sequence[float], Flag(is_list=True)] = (),
    root: Root = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Compare two methods: one is better, they are equally good, or the runs do not decide.

    Two runs are compared over images. Several runs of each method, with different seeds, are
    compared over seeds and images; where the test images have groups, such as toys or patients,
    over these.

    Example: torchcaps compare runs/routed-0 runs/routed-1 --with runs/uniform-0 runs/uniform-1

    Args:
        runs: Run folders of the method in question; without --with, two run folders.
        others: Run folders of the baseline, tested on the same images.
        paired: Take runs of the same seed as pairs, because split and order come from it.
        margin: Smallest difference that matters: a share of the errors of the baseline, as in 10%,
            or a difference in accuracy, as in 0.01. Methods closer than that are equally good.
        adjust: p-values of the other comparisons that are read together with this one, for Holm's
            correction.
    """
    from torchcaps.reporting.evaluated import read_margin

    if not others:
        if len(runs) != 2:
            raise UsageError(f"runs: expected two run folders, or --with, got {len(runs)}")
        others = runs[1:]
        runs = runs[:1]
    if not runs:
        raise UsageError("runs: expected one run folder or more, got none")
    counts = sorted([len(runs), len(others)])
    if counts[0] == 1 < counts[1]:
        raise UsageError(
            "--with: expected one run of each method or several of each, "
            f"got {counts[0]} and {counts[1]}"
        )
    if paired and counts[1] == 1:
        raise UsageError("--paired: expected several runs of each method, got one")
    _check_different((*runs, *others))
    for p_value in adjust:
        check_flag("--adjust", p_value, low=0, high=1)
    with usage():
        read_margin(margin)
    with counting("evaluating") as progress:
        comparison = tc.compare(
            runs,
            others,
            adjust=adjust,
            margin=margin,
            paired=paired,
            root=root,
            device=device,
            progress=progress,
        )
    show(json, comparison.to_dict(), comparison.table().lines, comparison.verdict)


def diagnose(
    run: Run,
    *,
    data: Data = None,
    root: Root = None,
    baseline: Path | None = None,
    images: int = 256,
    seed: int = 0,
    device: Device = "auto",
    verbose: bool = False,
    json: Json = False,
) -> None:
    """Say what the routing of a trained capsule network does: a verdict, and a table of checks.

    Example: torchcaps diagnose runs/capsnet-digits --baseline runs/cnn-digits

    Args:
        baseline: Another run folder or model file to compare with, such as a CNN of equal size.
        images: Number of random test images.
        seed: Seed of the choice of test images.
        verbose: Print the statistics of every measure, too.
    """
    check_flag("--images", images, low=2)
    with announce("measuring the couplings"):
        diagnosis = tc.diagnose(
            run,
            data,
            baseline=baseline,
            count=images,
            seed=seed,
            root=root,
            device=device,
        )
    if json:
        print_json(diagnosis.to_dict())
        return
    print(f"{diagnosis.verdict}\n")
    print_table(diagnosis.table().lines)
    print("\n✓ yes  ✗ no  ? these images do not decide")
    if verbose:
        print()
        for measure, verdict in diagnosis.verdicts().items():
            print_wrapped(f"{measure}: {verdict}")


def _check_different(runs: Sequence[Path]) -> None:
    """Raise UsageError if a run folder is named twice."""
    if len({run.resolve() for run in runs}) < len(runs):
        raise UsageError("runs: expected different run folders, got one of them twice")


def reconstruct(
    run: RunOrOurs = None,
    *,
    images: Sequence[Path] = (),
    data: Data = None,
    root: Root = None,
    per_class: int = 2,
    seed: int = 0,
    output: Path | None = None,
) -> None:
    """Draw images above their reconstructions from the longest capsule.

    Example: torchcaps reconstruct runs/capsnet-digits --per-class 3

    Args:
        images: Your own image file or folder instead of test images; may be given several times.
        per_class: Test images of each class; at most 80 pairs are drawn, evenly spread.
        seed: Seed of the choice of test images.
        output: The picture; by default plots/reconstructions.png in the run folder, or in the
            current folder.
    """
    check_flag("--per-class", per_class, low=1)
    with announce("drawing"):
        picture = tc.reporting.reconstruct_run(
            run or tc.models.weights_file(),
            images,
            data=data,
            root=root,
            per_class=per_class,
            seed=seed,
            output=output,
        )
    print(picture)


def perturb(
    run: RunOrOurs = None,
    *,
    images: Sequence[Path] = (),
    data: Data = None,
    root: Root = None,
    span: float = 0.25,
    steps: int = 11,
    seed: int = 0,
    output: Path | None = None,
) -> None:
    """Change each pose dimension and decode, to see what it encodes: a grid a class or image.

    Example: torchcaps perturb runs/capsnet-digits

    Args:
        images: Your own image file or folder instead of one test image per class; may be given
            several times.
        span: Largest change of a dimension in both directions.
        steps: Number of steps; with an odd number, the middle one is the unchanged capsule.
        seed: Seed of the choice of test images.
        output: Folder of the pictures; by default plots/ in the run folder, or in the current
            folder.
    """
    check_flag("--span", span, low=0)
    check_flag("--steps", steps, low=2)
    with announce("drawing a grid for each class or image"):
        pictures = tc.reporting.perturb_run(
            run or tc.models.weights_file(),
            images,
            data=data,
            root=root,
            span=span,
            steps=steps,
            seed=seed,
            output=output,
        )
    print(*pictures, sep="\n")


def animate(
    run: RunOrOurs = None,
    images: Sequence[Path] = (),
    *,
    data: Data = None,
    root: Root = None,
    seed: int = 0,
    output: Path | None = None,
) -> None:
    """Write a GIF of the votes for each class, laid tip to tail, from iteration to iteration.

    Example: torchcaps animate runs/capsnet-digits digit.png

    Args:
        images: Your own image files or folders; by default one test image per class.
        seed: Seed of the choice of test images.
        output: The file; by default plots/votes.gif in the run folder, or in the current folder.
    """
    with announce("drawing each iteration for each class or image"):
        picture = tc.reporting.animate_run(
            run or tc.models.weights_file(), images, data=data, root=root, seed=seed, output=output
        )
    print(picture)


def explore(
    run: RunOrOurs = None,
    other: Path | None = None,
    *,
    root: Root = None,
    port: int | None = None,
    open: bool = True,
) -> None:
    """Open the page that shows what a network's capsules say while you draw.

    The page is one file, page/index.html in the run folder, and works without torchcaps. A model that
    it cannot carry is answered for by a server on this machine, until Ctrl-C.

    Example: torchcaps explore runs/capsnet-digits

    Args:
        other: A second run folder or model file, to compare with on the same input.
        port: Serve the page from this port of this machine, or the next free one.
        open: Open the page in the browser; --no-open only says where it is.
    """
    if port is not None:
        check_flag("--port", port, low=0, high=65535)
    try:
        with (
            sigterm_as_exit(os._exit),  # a server writes nothing
            announce("making the page") as silence,
        ):

            def say(line: str) -> None:
                silence()
                print(line, flush=True)

            tc.explore(
                run,
                other,
                root=root,
                port=port,
                open_page=open,
                log=say,
            )
    except KeyboardInterrupt:
        note("stopped")


def export(
    run: Run,
    *,
    format: Annotated[str | None, Flag(metavar="onnx|torch|hub|page")] = None,
    output: Path | None = None,
    half: bool = False,
    int8: bool = False,
    opset: int | None = None,
    push: Annotated[str | None, Flag(metavar="OWNER/NAME")] = None,
    private: bool = False,
    root: Root = None,
    json: Json = False,
) -> None:
    """Write a trained model as a file that other programs run, without torchcaps.

    The file takes batches of any size, and has the names of the classes and the preprocessing in
    it. It is checked on test images of the run before it gets its name.

    Example: torchcaps export runs/capsnet-digits --format onnx --output digits.onnx

    Args:
        format: onnx; torch for a program of torch.export (.pt2); hub for a folder in the layout of
            the Hugging Face Hub; or page for a web page that runs the network and explains it. By
            default from the ending of --output, or onnx.
        output: The file, or the folder; by default model.onnx, model.pt2, hub or page/index.html in
            the run folder.
        half: Store weights in float16; they are computed with in float32.
        int8: Store the matrices of capsule layers as whole numbers of 8 bits.
        opset: Version of ONNX's operators; by default the converter's.
        push: With --format hub, repository to upload the folder to, as the user that
            `hf auth login` has logged in.
        private: With --push, make a repository for its owner alone.
    """
    from torchcaps.exporting.formats import EXPORT_FORMATS

    if output is None:
        format = format or "onnx"
        output = tc.reporting.evaluation_folder(run) / EXPORT_FORMATS[format].file
    if push is not None and format != "hub":
        raise UsageError(f"--push: expected --format hub, got {format}")
    with usage(), announce("writing the file, and comparing its answers on test images"):
        exported = tc.export(
            run, output, format=format, half=half, int8=int8, opset=opset, root=root
        )
    document = exported.to_dict()
    rows = [("figure", "value")]
    for name, figure in document.items():
        rows.append((name, f"{figure:.3g}" if isinstance(figure, float) else str(figure)))
    if push is not None:
        note(f"uploaded to {tc.exporting.push(exported.path, push, private=private)}")
    show(json, document, rows)

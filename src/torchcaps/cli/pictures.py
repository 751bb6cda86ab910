"""torchcaps reconstruct, torchcaps perturb and torchcaps explore: look at what capsules encode."""

import os
from collections.abc import Sequence
from pathlib import Path

import torchcaps as tc
from torchcaps.cli.console import note, sigterm_as_exit
from torchcaps.cli.parser import Data, Device, Root, RunOrOurs, check_flag, use_threads


def reconstruct(
    run: RunOrOurs = None,
    *,
    images: Sequence[Path] = (),
    data: Data = None,
    root: Root = None,
    per_class: int = 2,
    seed: int = 0,
    output: Path | None = None,
) -> int:
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
    return 0


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
) -> int:
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
    return 0


def explore(
    run: RunOrOurs = None,
    other: Path | None = None,
    *,
    data: str | None = None,
    root: Root = None,
    host: str = "127.0.0.1",
    port: int = 8700,
    open: bool = True,
    device: Device = "auto",
    threads: int = 1,
) -> int:
    """Serve a page on this machine to draw a digit and watch the capsules. Ctrl-C ends it.

    Example: torchcaps explore runs/capsnet-digits

    Args:
        other: A second run folder or model file, to compare with on the same input.
        data: Data set, by name or path, to choose test images from; by default the run's own.
        host: Address to listen on; for any address but this machine's own, requests need the token in
            the printed address.
        port: First port to try; the next ones are tried if it is in use.
        open: Open the page in the browser; --no-open does not.
        threads: Processor threads; more threads hardly help for one image at a time.
    """
    check_flag("--port", port, low=0, high=65535)
    use_threads(threads)
    note("reading the model ...")
    try:
        with sigterm_as_exit(os._exit):  # it writes nothing, and may be in the middle of a pass
            tc.explore(
                run,
                other,
                data=data,
                root=root,
                host=host,
                port=port,
                open_page=open,
                device=device,
                log=lambda line: print(line, flush=True),
                warn=note,
            )
    except KeyboardInterrupt:
        note("stopped")
    return 0

"""torchcaps reconstruct, torchcaps perturb and torchcaps explore: look at what capsules encode."""

import os
from pathlib import Path
from typing import Annotated

import tyro

import torchcaps as tc
from torchcaps.cli.console import note
from torchcaps.cli.flags import Data, Device, Root, RunOrOurs, check_flag, use_threads
from torchcaps.cli.signals import sigterm_as_exit


def reconstruct(
    run: RunOrOurs = None,
    /,
    images: Annotated[tuple[Path, ...], tyro.conf.UseAppendAction] = (),
    data: Data = None,
    root: Root = None,
    per_class: int = 2,
    seed: int = 0,
    output: Path | None = None,
) -> int:
    """Draw originals over what the decoder makes of their longest capsule.

    Example: torchcaps reconstruct runs/capsnet-digits --per-class 3

    Args:
        images: Own image file or folder instead of test images; may be given several times.
        per_class: Test images of each class; at most 80 pairs are drawn, evenly spread.
        seed: Of their choice.
        output: The picture; by default plots/reconstructions.png in the run folder, or here.
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
    /,
    images: Annotated[tuple[Path, ...], tyro.conf.UseAppendAction] = (),
    data: Data = None,
    root: Root = None,
    span: float = 0.25,
    steps: int = 11,
    seed: int = 0,
    output: Path | None = None,
) -> int:
    """Move each pose dimension and decode, to see what it encodes: a grid per class, or own image.

    Example: torchcaps perturb runs/capsnet-digits

    Args:
        images: Own image file or folder instead of one test image per class; may be given several
            times.
        span: How far each dimension moves either way.
        steps: Steps from one end to the other; an odd number shows the capsule as it is in the
            middle.
        seed: Of the choice of test images.
        output: Folder of the pictures; by default plots/ in the run folder, or here.
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
    other: Annotated[Path | None, tyro.conf.Positional] = None,
    /,
    data: str | None = None,
    root: Root = None,
    host: str = "127.0.0.1",
    port: int = 8700,
    open: bool = True,
    device: Device = "auto",
    threads: int = 1,
) -> int:
    """Draw a digit and watch the capsules, in a page that this machine serves. Ctrl-C ends it.

    Example: torchcaps explore runs/capsnet-digits

    Args:
        other: Another one, to compare with on the same input.
        data: Another data set than the run's own to choose test images from, by name or path.
        host: Address to listen on; any but this machine's own asks for the token that the printed
            address has.
        port: The first port to try.
        open: Open the page in the browser.
        threads: Of torch; one image at a time gains little from more.
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

"""torchcaps reconstruct and torchcaps perturb."""

from pathlib import Path
from typing import Annotated

import tyro

from torchcaps.cli.console import usage
from torchcaps.cli.flags import Data, Root, RunOrOurs


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
    from torchcaps import report
    from torchcaps.errors import check_range
    from torchcaps.models import weights_file

    with usage():
        check_range("--per-class", per_class, low=1)
    run = run or weights_file()
    print(report.reconstruct_run(run, images, data=data, root=root, per_class=per_class, seed=seed, output=output))
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
    """See what each pose dimension encodes: move one at a time and decode. One grid per class, or per own image.

    Example: torchcaps perturb runs/capsnet-digits

    Args:
        images: Own image file or folder instead of one test image per class; may be given several times.
        span: How far each dimension moves either way.
        steps: Steps from one end to the other, an odd number shows the capsule as it is in the middle.
        seed: Of the choice of test images.
        output: Folder of the pictures; by default plots/ in the run folder, or here.
    """
    from torchcaps import report
    from torchcaps.errors import check_range
    from torchcaps.models import weights_file

    with usage():
        check_range("--span", span, low=0)
        check_range("--steps", steps, low=2)
    run = run or weights_file()
    written = report.perturb_run(run, images, data=data, root=root, span=span, steps=steps, seed=seed, output=output)
    for path in written:
        print(path)
    return 0

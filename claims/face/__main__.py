"""The command line of the page of the misplaced face."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from claims.face import __doc__ as description
from claims.face.networks import train_networks
from claims.face.page import write_page
from torchcaps.cli.console import note
from torchcaps.cli.parser import use_threads
from torchcaps.errors import TorchcapsError, one_line

WORK = Path("runs/face")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        "python -m claims.face",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the page")
    parser.add_argument(
        "--train", action="store_true", help="train both networks, and replace the stored ones"
    )
    flags = parser.parse_args(arguments)
    if not (flags.output or flags.train):
        parser.error("expected --output FILE or --train")
    try:
        if flags.train:
            use_threads(1)
            train_networks(WORK, note)
        if flags.output:
            write_page(flags.output)
            print(flags.output)
    except (TorchcapsError, OSError) as error:
        note(f"claims.face: error: {one_line(str(error))}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

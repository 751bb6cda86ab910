"""Run a campaign: `python -m campaign --cases 10000`, or `--minutes 20`.

Prints a table. Exit status 1 for failures.
"""

import argparse
import sys
import time
from datetime import date
from itertools import chain, islice
from pathlib import Path

from campaign.core import cases, fixed
from campaign.run import Campaign


def main():
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="python -m campaign", description=__doc__)
    parser.add_argument(
        "--cases", type=int, default=10_000, help="how many, the committed ones first"
    )
    parser.add_argument("--minutes", type=float, help="run so long instead, whatever --cases says")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws other cases")
    parser.add_argument(
        "--only", action="append", default=[], help='an area, or "area/test"; may be given again'
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--failures", type=Path, default=Path("campaign-failures"), help="folder for their files"
    )
    options = parser.parse_args()
    stream = chain(fixed(options.only), cases(options.seed, options.only))
    if options.minutes is None:
        stream = islice(stream, options.cases)
    campaign = Campaign(stream, options.failures, options.minutes)
    start = time.monotonic()
    try:
        campaign.run(options.processes)
    except KeyboardInterrupt:
        print("interrupted; so far:", file=sys.stderr)
    minutes = (time.monotonic() - start) / 60
    print(
        f"{date.today()}, seed {options.seed}, {options.processes} processes, {minutes:.1f} minutes\n"
    )
    print(campaign.table())
    return int(campaign.failed)


if __name__ == "__main__":
    sys.exit(main())

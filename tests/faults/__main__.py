"""Faults put into copies of the library: which of them do its tests notice?

Exit status 1 where one survives, or its record is stale.
"""

import argparse
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch

from .records import load
from .runner import judge


def main() -> int:
    """Run the command line; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", default="*", help="names of faults, with * and ?")
    parser.add_argument("--jobs", type=int, default=2, help="copies of the checkout at work")
    options = parser.parse_args()
    faults = [fault for fault in load() if fnmatch(fault.name, options.only)]
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(options.jobs) as pool:
        for fault, verdict in zip(faults, pool.map(judge, faults), strict=True):
            counts[verdict] += 1
            print(f"{verdict:9s} {fault.name}", flush=True)
            if verdict != "caught":
                print(f"          {fault.path}: {fault.why}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    return 0 if set(counts) == {"caught"} else 1


if __name__ == "__main__":
    sys.exit(main())

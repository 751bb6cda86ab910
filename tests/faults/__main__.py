"""Faults put into copies of the library: which of them do its tests notice?

    python -m tests.faults [--only GLOB] [--jobs N]      those written by hand
    python -m tests.faults generate --count N --packages functional nn ...      those made by rule

Exit status 1 where a fault survives, or its record is stale; generated faults are only counted.
"""

import argparse
import json
import sys
from collections import Counter
from fnmatch import fnmatch
from operator import attrgetter
from pathlib import Path

from .mutants import package_tests, sample
from .records import Fault, load
from .runner import Verdict, run
from .tree import ROOT

RESULTS = ROOT / "runs" / "faults" / "generated.jsonl"
PACKAGES = (
    "functional",
    "nn",
    "models",
    "data",
    "tasks",
    "training",
    "evaluation",
    "reporting",
    "explorer",
    "cli",
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--only", default="*", help="names of faults, with * and ?")
    parser.add_argument("--jobs", type=int, default=2, help="copies of the checkout at work")
    commands = parser.add_subparsers(dest="command")
    generate = commands.add_parser("generate", help="faults made by rule, a sample of them")
    generate.add_argument("--count", type=int, default=200)
    generate.add_argument("--seed", type=int, default=0, help="which ones are drawn")
    generate.add_argument("--packages", nargs="+", default=PACKAGES)
    generate.add_argument("--jobs", type=int, default=argparse.SUPPRESS)
    generate.add_argument("--results", type=Path, default=RESULTS, help="JSON lines; continued")
    options = parser.parse_args(arguments)
    if options.command == "generate":
        return generated(options)
    return written(options)


def written(options: argparse.Namespace) -> int:
    """Run the faults written by hand."""
    faults = [fault for fault in load() if fnmatch(fault.name, options.only)]
    if not faults:
        print(f"--only {options.only}: no fault has such a name", file=sys.stderr)
        return 2
    verdicts = run(faults, min(options.jobs, len(faults)), show)
    counts = Counter(map(attrgetter("verdict"), verdicts))
    return 0 if summarize(counts) else 1


def read_verdicts(results: Path) -> dict[str, str]:
    """Verdicts by the names of their faults."""
    if not results.is_file():
        return {}
    verdicts = {}
    for line in results.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        verdicts[row["name"]] = row["verdict"]
    return verdicts


def generated(options: argparse.Namespace) -> int:
    """Run a sample of generated faults, without those whose verdict is in the file of results."""
    results: Path = options.results
    results.parent.mkdir(parents=True, exist_ok=True)
    verdict_of = read_verdicts(results)
    faults = sample(options.packages, options.count, options.seed)
    pending = [fault for fault in faults if fault.name not in verdict_of]
    print(f"{len(faults)} faults, {len(faults) - len(pending)} of them in {results}", flush=True)

    def append(verdict: Verdict) -> None:
        verdict_of[verdict.name] = verdict.verdict
        show(verdict)
        with results.open("a", encoding="utf-8") as file:
            file.write(verdict.to_json() + "\n")

    def further_tests(fault: Fault) -> tuple[tuple[str, ...], ...]:
        tests = package_tests(Path(fault.path))
        return () if tests == fault.tests else (tests,)

    run(pending, min(options.jobs, max(1, len(pending))), append, further_tests)
    counts = Counter(verdict_of[fault.name] for fault in faults)
    summarize(counts)
    return 0


def show(verdict: Verdict) -> None:
    """One line for a caught fault, more for another one."""
    print(f"{verdict.verdict:9s} {verdict.seconds:6.1f} s  {verdict.name}", flush=True)
    if verdict.verdict != "caught":
        print(f"          {verdict.path}: {verdict.why} [{verdict.detail}]", flush=True)


def summarize(counts: Counter[str]) -> bool:
    """Print the counts; whether all are caught."""
    words = [f"{count} {word}" for word, count in sorted(counts.items())]
    print(", ".join(words) or "nothing to do")
    return set(counts) <= {"caught"}


if __name__ == "__main__":
    sys.exit(main())

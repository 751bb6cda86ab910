"""Published claims: what is there, and the training of what is missing.

    python -m claims                                        all claims, with their verdicts
    python -m claims NAME                                   one claim, its arms
    python -m claims --run --minutes 60                     train what is missing
    python -m claims NAME --run --budget small              a trial, which never counts
    python -m claims --run --device cuda --jobs 8           eight trainings beside each other
    python -m claims --json                                 write benchmarks/results/claims.json

A training that was stopped or killed is continued by the same command.
"""

import argparse
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from claims.protocol import Claim, list_claims, load_claim
from claims.results import read_results
from claims.runner import run_claims
from claims.table import Finished, Judgments, arms_table, claim_rows, claims_table, judge_claims
from torchcaps import plugins
from torchcaps.cli.console import (
    UsageError,
    note,
    print_json,
    print_table,
    print_wrapped,
    stoppable,
)
from torchcaps.cli.parser import use_threads
from torchcaps.errors import TorchcapsError, UnknownNameError, one_line
from torchcaps.training import keep_memory
from torchcaps.training.files import write_json

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "claims"
TRIAL_SEEDS = 2


def positive(text: str) -> int:
    """A whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        "python -m claims",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="a claim, or a .toml file")
    parser.add_argument("--run", action="store_true", help="train what is missing")
    parser.add_argument(
        "--budget", choices=("small", "full"), default="full", help="small: a trial of two seeds"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="start no training after so many"
    )
    parser.add_argument("--results", type=Path, help="folder of the results")
    parser.add_argument("--root", help="folder that is searched first for a named data set")
    parser.add_argument("--device", help="auto, cpu, cuda, ...")
    parser.add_argument(
        "--jobs", type=positive, default=1, help="trainings beside each other, a process each (1)"
    )
    parser.add_argument("--threads", type=int, default=1, help="processor threads (1)")
    parser.add_argument(
        "--json",
        action="store_true",
        help="the complete claims as JSON, of all claims also as a file",
    )
    parser.add_argument(
        "--import",
        dest="imports",
        metavar="MODULE",
        action="append",
        default=[],
        help="module or .py file to import first; may be given several times",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    flags = parser().parse_args(words)
    try:
        for module in ("claims", *flags.imports):
            plugins.import_module(module)  # runs record the name
        return run(flags, words)
    except (UsageError, UnknownNameError, ModuleNotFoundError) as error:
        note(f"claims: error: {one_line(str(error))}")
        return 2
    except (TorchcapsError, ValueError, ImportError, OSError) as error:
        note(f"claims: error: {one_line(str(error))}")
        return 1


def run(flags: argparse.Namespace, words: Sequence[str]) -> int:
    """Train what is missing if asked, and print what is there; returns the exit status.

    Args:
        flags: of the command line.
        words: of it, for further processes.
    """
    names = list_claims() if flags.name is None else [flags.name]
    claims = [load_claim(name) for name in names]
    work = Path("runs/claims") / flags.budget
    results = flags.results or RESULTS
    if flags.budget != "full":  # a trial stands beside its runs, and never counts
        results = flags.results or work / "results"
        claims = [replace(claim, seeds=TRIAL_SEEDS) for claim in claims]
    if flags.run:
        use_threads(flags.threads)  # one, because many claims are trained side by side
        keep_memory()
        with (
            _further_jobs(flags.jobs - 1, words),
            stoppable("the same command continues it", "claims") as callbacks,
        ):
            run_claims(
                claims,
                results,
                work=work,
                budget=flags.budget,
                minutes=flags.minutes,
                root=flags.root,
                device=flags.device,
                callbacks=callbacks,
                started=note,
            )
    # A verdict on one claim of a family takes the p-values of all.
    others = list_claims() if flags.name in list_claims() else ()
    family = claims + [load_claim(name) for name in others if name != flags.name]
    finished = {claim.name: read_results(claim, results, flags.budget) for claim in family}
    judgments = judge_claims(family, finished)
    if flags.json:
        document = _document(claims, finished, judgments)
        print_json(document)
        if flags.name is None:
            write_json(results.with_suffix(".json"), document)
        return int(bool(document["open"]))
    _print_tables(claims, finished, judgments, is_one=flags.name is not None)
    return 0


def _document(claims: Sequence[Claim], finished: Finished, judgments: Judgments) -> dict[str, Any]:
    """The rows of the complete claims, and the names of the open ones, which are said as well."""
    open_names = [claim.name for claim in claims if claim.name not in judgments]
    if open_names:
        names = ", ".join(open_names)
        note(f"claims: {len(open_names)} of {len(claims)} wait for trainings: {names}")
    return {"claims": claim_rows(claims, finished, judgments), "open": open_names}


@contextmanager
def _further_jobs(count: int, words: Sequence[str]) -> Iterator[None]:
    """Run the same command in so many further processes, and wait for them at the end.

    Where this process is stopped they are stopped too, and keep their states.

    Raises:
        ChildProcessError: one of them failed.
    """
    words = [word for word in words if word != "--json"]
    command = [sys.executable, "-m", "claims", *words, "--jobs", "1"]
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield
    except BaseException:
        for process in processes:
            process.terminate()
        raise
    finally:
        statuses = [process.wait() for process in processes]
    if failed := [status for status in statuses if status]:
        raise ChildProcessError(f"{len(failed)} of {count} further jobs failed; see above")


def _print_tables(
    claims: Sequence[Claim], finished: Finished, judgments: Judgments, is_one: bool
) -> None:
    """Print a table of all claims; of one claim also its protocol and its arms."""
    if is_one:
        [claim] = claims
        for title in ("statement", "source", "published", "measure", "support", "refutation"):
            print_wrapped(f"{title}: {getattr(claim, title)}")
        print()
        print_table(arms_table(claim, finished[claim.name]))
        print()
    print_table(claims_table(claims, finished, judgments))


if __name__ == "__main__":
    sys.exit(main())

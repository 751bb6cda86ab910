"""Commands by name; errors as one sentence; status 0 done, 1 failed, 2 wrong command line."""

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stderr,
    redirect_stdout,
)

import torchcaps as tc
from torchcaps.cli import lists, predict, report, train
from torchcaps.cli.console import LOSSY, UsageError, ignore_signals, sigterm_as_exit
from torchcaps.cli.parser import Command, find_values, hinted, parse

# The commands in groups, with a line each in the help of the program, in at most 80 columns. A
# function's keyword-only parameters are its flags, beside `--import` and `--threads`; its docstring
# is its help.
GROUPS: dict[str, dict[Command, str]] = {
    "Start": {
        report.explore: "draw a digit and watch the capsules; needs no training",
        train.train: "train a model, test it, and leave a run folder",
        report.evaluate: "measure a trained model on images it has not seen",
        predict.predict: "classify your own images",
        report.report: "everything about a run on one HTML page",
        lists.models: "what each model is for, its size and accuracy",
        lists.data: "list the data sets, download one, or verify one",
        lists.doctor: "what of this machine is used: device, threads, kernels",
    },
    "Inspect": {
        report.diagnose: "does routing do anything in this network?",
        report.reconstruct: "draw images above their reconstructions",
        report.perturb: "change each pose dimension and see what it encodes",
        report.animate: "the votes of an image, tip to tail, as a GIF",
        report.compare: "is one method better than another, or equally good?",
        report.export: "a trained model as a file that works without torchcaps",
    },
    "Research": {
        lists.recipes: "list the recipes, each a published experiment",
        train.reproduce: "run a published experiment beside its published figures",
        train.audit: "a capsule head beside plain heads, on equal terms",
        lists.check: "test the properties of your own layer or router",
        lists.import_: "read published weights of other code",
    },
}
COMMANDS: dict[str, Command] = {
    command.__name__.rstrip("_"): command for group in GROUPS.values() for command in group
}
SHARED = ("train", "evaluate", "predict")  # commands whose work several processes share


def describe() -> str:
    """The help of the program: its commands in groups."""
    lines = ["Capsule networks: train, evaluate, inspect, predict."]
    for heading, group in GROUPS.items():
        lines.append(f"\n{heading}")
        for command, about in group.items():
            lines.append(f"  {command.__name__.rstrip('_'):<11} {about}")
    lines += ["", "Example: torchcaps train capsnet-digits && torchcaps report runs/capsnet-digits"]
    return "\n".join([*lines, "torchcaps COMMAND --help describes a command."])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (without the program's name); returns the exit status.

    As one of several processes that `torchrun` started it ends the process instead.
    """
    # A stream that the caller closed writes to nowhere; otherwise the next file opened would take its
    # place. Characters that an encoding lacks are replaced.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            nowhere = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 (to the end)
            setattr(sys, name, nowhere)
        elif isinstance(stream, io.TextIOWrapper) and mode == "w":
            stream.reconfigure(errors=LOSSY)
    arguments = sys.argv[1:] if arguments is None else arguments
    if int(os.environ.get("WORLD_SIZE") or 1) == 1:
        return run_command(arguments)
    # Otherwise torch writes what DDP finds out to stderr, once for each process.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # Else cuBLAS may add in another order each time, which --deterministic forbids.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    from torchcaps.distributed import hard_exit

    try:
        status = run_command(arguments, _join_processes(arguments))
    except SystemExit as end:  # a wrong word, help, or SIGTERM
        status = int(end.code or 0)
    hard_exit(status)


def run_command(
    arguments: Sequence[str],
    context: AbstractContextManager[None] = nullcontext(),  # noqa: B008
) -> int:
    """Run a command line within a context; an expected failure is one sentence.

    Returns the exit status.
    """
    from torchcaps.errors import TorchcapsError, UnknownNameError

    try:
        if "--version" in arguments[:1]:
            print(f"torchcaps {tc.__version__}")
            return 0
        with sigterm_as_exit(), context:
            command = parse(COMMANDS, arguments, describe())
            with hinted(command.keywords.values()):
                status = command() or 0
            sys.stdout.flush()  # a full disk or a closed pipe shows here, not when Python ends
            return status
    except (UsageError, UnknownNameError) as error:
        return _fail(error, 2)
    except (TorchcapsError, ValueError, ImportError) as error:
        return _fail(error, 1)
    except (MemoryError, RuntimeError) as error:
        names = ("MemoryError", "OutOfMemoryError")  # torch's own is not imported here
        if type(error).__name__ not in names and "can't allocate memory" not in str(error):
            raise
        return _fail("out of memory; take a smaller --batch-size, --img-size or model", 1)
    except KeyboardInterrupt:
        ignore_signals()
        _say("interrupted")
        return 130
    except BrokenPipeError:  # the reader, such as `head`, went away
        return _without_stdout(1)
    except OSError as error:
        status = _fail(f"{error.filename or 'output'}: {error.strerror}", 1)
        if error.filename is None:
            _without_stdout(status)
        return status


@contextmanager
def _join_processes(arguments: Sequence[str]) -> Iterator[None]:
    """Join the other processes. The first one prints; of another only an error is printed."""
    from torchcaps.distributed import init, lost_rank_errors

    # The device decides how the processes communicate.
    device = (find_values("--device", arguments) or ["auto"])[0]
    with init(os.environ, device) as ranks, lost_rank_errors():
        if arguments and arguments[0] in COMMANDS and arguments[0] not in SHARED:
            raise UsageError(
                f"{arguments[0]}: expected one process, got {ranks.world_size}; "
                "start it without torchrun"
            )
        try:
            with nullcontext() if ranks.is_main else _silence():
                yield
        except SystemExit as end:
            # Help (0) or a wrong word (2) is for all alike; the end of one would end the others.
            if end.code in (0, 2):
                ranks.broadcast(None)
            raise


@contextmanager
def _silence() -> Iterator[None]:
    """Print nothing while open."""
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
    ):
        yield


def _fail(error: Exception | str, status: int) -> int:
    """Print an error on one line. Returns the exit status."""
    _say(f"error: {' '.join(str(error).split())}")
    return status


def _say(text: str) -> None:
    """Print why the program ends; of several processes, the first one that ends does."""
    ranks = sys.modules.get("torchcaps.distributed")
    if ranks is None or ranks.current().claim_report():
        print(f"torchcaps: {text}", file=sys.stderr)


def _without_stdout(status: int) -> int:
    """Keep Python from complaining once more, at its end, about what it could not write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status

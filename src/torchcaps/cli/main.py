"""Commands by name, errors as one sentence, exit status 0 done / 1 failed / 2 wrong command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

import tyro

from torchcaps.cli import data, doctor, inspect, lists, measure, train

# One line a command; a function's signature is its flags and its docstring is its help.
COMMANDS: dict[str, Callable[..., int]] = {
    "train": train.train,
    "evaluate": measure.evaluate,
    "predict": measure.predict,
    "reconstruct": inspect.reconstruct,
    "perturb": inspect.perturb,
    "models": lists.models,
    "recipes": lists.recipes,
    "data": data.data,
    "doctor": doctor.doctor,
}

DESCRIPTION = """Capsule networks: train, evaluate, look inside, predict.

Example: torchcaps train capsnet-digits && torchcaps evaluate runs/capsnet-digits"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (without the program's name); returns the exit status."""
    from torchcaps.errors import TorchcapsError, UnknownNameError

    try:
        return tyro.extras.subcommand_cli_from_dict(
            COMMANDS, prog="torchcaps", description=DESCRIPTION, args=arguments, sort_subcommands=False,
            config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes),
        )  # fmt: skip
    except UnknownNameError as error:
        return _fail(error, 2)
    except (TorchcapsError, ValueError, ImportError) as error:
        return _fail(error, 1)
    except KeyboardInterrupt:
        print("torchcaps: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader (such as `head`) went away; keep Python from complaining about it once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _fail(error: Exception, status: int) -> int:
    print(f"torchcaps: error: {' '.join(str(error).split())}", file=sys.stderr)
    return status

"""Names of the package's own models and recipes, to answer a mistyped one without loading torch.

`names.json` is written by `python -m cli.test_names` in tests; a test keeps it equal to the
registries.
"""

import json
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from torchcaps.errors import ArgumentError, UnknownNameError
from torchcaps.plugins import GROUP

FILE = Path(__file__).with_name("names.json")
# Commands whose first word is a name, and the kinds of names.
NAMED = {"train": ("recipe", "model"), "reproduce": ("recipe",)}


def check_name(arguments: Sequence[str]) -> None:
    """Check the name that `train` or `reproduce` gets, where only built-in names are possible.

    Args:
        arguments: the command line.

    Raises:
        UnknownNameError: it is neither a name nor a `.toml` file.
        ArgumentError: it is a path.
    """
    kinds = NAMED.get("".join(arguments[:1]), ())
    name = "".join(arguments[1:2])
    if not kinds or not name or name.startswith("-") or name.endswith(".toml"):
        return
    # A module, a plug-in or a run that goes on may have other names.
    is_open = any(word.startswith(("--import", "--resume")) for word in arguments)
    if is_open or metadata.entry_points(group=GROUP):
        return
    by_kind = json.loads(FILE.read_text(encoding="utf-8"))
    known = [known_name for kind in kinds for known_name in by_kind[kind]]
    if name in known:
        return
    kind = " or ".join(kinds)
    if Path(name).exists() or "/" in name:
        raise ArgumentError(
            kind, f"expected a name, got the path {name}; to train on it: --data {name}"
        )
    raise UnknownNameError(kind, name, known)

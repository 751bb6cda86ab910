"""Metrics, settings and paths in the words of reports and of the command line."""

import os
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

MAX_NAMES = 10  # in a list of names
MAX_NAME_BYTES = 150  # of a file; file systems take 255 with what is added


def percent(share: float | None) -> str:
    """`99.43 %` for 0.9943; a dash for None."""
    return "-" if share is None else f"{100 * share:.2f} %"


def rounded(number: float | None) -> str:
    """A number with four decimals, or a count without; a dash for None and for no number."""
    if number is None or not isfinite(number):
        return "-"
    return f"{number:,}" if isinstance(number, int) else f"{number:.4f}"


def in_words(key: str) -> str:
    """`train_loss` as "train loss"."""
    return key.replace("_", " ")


def format_metric(name: str, metric: float) -> str:
    """A metric: an accuracy in percent, another with four digits."""
    return percent(metric) if name.endswith("accuracy") else f"{metric:.4g}"


def numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    """The figures that are numbers, by name in words.

    `{"correlation": {"dx": 1}}` becomes `{"correlation dx": 1}`.
    """
    flat: dict[str, float] = {}
    for key, figure in figures.items():
        name = in_words(key)
        if isinstance(figure, dict):
            flat |= {f"{name} {inner}": number for inner, number in numbers(figure).items()}
        elif isinstance(figure, int | float) and key != "num_samples":
            flat[name] = figure
    return flat


def duration(seconds: float) -> str:
    """`9 s`, `14 min`, `2 h 5 min`: to one part in ten or so."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def join_names(names: Sequence[str], limit: int = MAX_NAMES) -> str:
    """`a, b, c`; of more names than the limit, `and 3 more` in place of the rest."""
    if len(names) > limit:
        return f"{', '.join(names[:limit])} and {len(names) - limit:,} more"
    return ", ".join(names)


def unique_suffixes(paths: Sequence[str | Path]) -> list[str]:
    """The shortest ends of different paths that distinguish them: `a/seed-0`, `b/seed-0`."""
    parts = [Path(path).resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return names


class UniqueNames:
    """Names of files, with a number after one that was there before, in whatever case.

    Some file systems do not tell capitals from small letters. All have a longest name: the end of
    one of more than 150 bytes is cut off.
    """

    def __init__(self) -> None:
        self.taken: set[str] = set()  # in small letters

    def __call__(self, name: str) -> str:
        """The name, or `NAME-2`, `NAME-3`, ... where it is taken."""
        name = os.fsencode(name)[:MAX_NAME_BYTES].decode(errors="ignore")
        candidate = name
        number = 2
        while candidate.lower() in self.taken:
            candidate = f"{name}-{number}"
            number += 1
        self.taken.add(candidate.lower())
        return candidate


def setting(content: Any) -> str:
    """A value of a configuration file."""
    if content is None:
        return "none"
    if isinstance(content, bool):
        return "yes" if content else "no"
    if isinstance(content, dict):
        return ", ".join(f"{key} = {setting(inner)}" for key, inner in content.items()) or "none"
    if isinstance(content, list | tuple):
        return " × ".join(map(setting, content))
    return str(content)

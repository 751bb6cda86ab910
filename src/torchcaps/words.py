"""Figures, settings and paths as people read them."""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any


def percent(share: float | None) -> str:
    """`99.43 %` for 0.9943; a dash for none."""
    return "-" if share is None else f"{100 * share:.2f} %"


def rounded(value: float | None) -> str:
    """A number with four decimals unless it is a count; a dash for none."""
    if value is None or not isfinite(value):
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


def in_words(key: str) -> str:
    """`train_loss` as "train loss"."""
    return key.replace("_", " ")


def format_metric(name: str, value: float) -> str:
    """A metric: an accuracy in percent, another with four digits."""
    return percent(value) if name.endswith("accuracy") else f"{value:.4g}"


def numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    """The figures that are numbers, by name in words; `{"correlation": {"dx": 1}}` is "correlation dx"."""
    flat: dict[str, float] = {}
    for key, value in figures.items():
        name = in_words(key)
        if isinstance(value, dict):
            flat |= {f"{name} {inner}": number for inner, number in numbers(value).items()}
        elif isinstance(value, int | float) and key != "num_samples":
            flat[name] = value
    return flat


def duration(seconds: float) -> str:
    """`9 s`, `14 min`, `2 h 5 min`: to one part in ten or so."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def counted(number: int, thing: str) -> str:
    """`1 epoch`, `2 epochs`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def unique_suffixes(paths: Sequence[str | Path]) -> list[str]:
    """The shortest ends of different paths that tell them apart: `a/seed-0`, `b/seed-0`."""
    parts = [Path(path).resolve().parts for path in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-depth:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return names


def setting(value: Any) -> str:
    """A value of a configuration file."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} = {setting(one)}" for key, one in value.items()) or "none"
    if isinstance(value, list | tuple):
        return " × ".join(setting(one) for one in value)
    return str(value)

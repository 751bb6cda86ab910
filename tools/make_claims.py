"""What docs/claims.md and docs/does-routing-help.md have of claims.json: tables and pictures.

`python tools/make_results.py` writes them with the tables of results.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import textwrap
import tomllib
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from scipy.stats import t as student

ROOT = Path(__file__).resolve().parents[1]
CLAIMS = ROOT / "benchmarks" / "results" / "claims.json"
TRAININGS = CLAIMS.with_suffix("")
PROTOCOLS = ROOT / "recipes" / "claims"
PICTURES = ROOT / "docs" / "images" / "claims"
PAGE = "claims.md"
ROUTING_PAGE = "does-routing-help.md"
ROUTING = ("routing-lowers-error", "parse-tree", "uncrowding", "one-matrix-no-routing")
WIDTH = 100
READING = "*The reading.*"
LEVEL = 0.95
CODE = re.compile(r"`[^`]+`")

# A picture, in pixels: names to the left, then the scale.
LABELS = 300
LETTER = 7  # the most that one takes
SCALE = 360
MARGIN = 50
ROW = 22
INK = "#17202b"
QUIET = "#525e6e"
LINE = "#c9d1db"
COLORS = {"better": "#0067a3", "worse": "#b84a00"}


class Protocol(NamedTuple):
    """What the tables have of a protocol, and its row of claims.json, None while it is open."""

    name: str
    recipe: dict[str, Any]
    row: dict[str, Any] | None

    @property
    def claim(self) -> dict[str, Any]:
        claim: dict[str, Any] = self.recipe["claim"]
        return claim

    @property
    def is_own(self) -> bool:
        """Whether it is a question of this repository."""
        return bool(self.claim.get("family") == "own")


def load_protocols() -> list[Protocol]:
    """Complete claims first, then open ones; questions of this repository last."""
    document = json.loads(CLAIMS.read_text(encoding="utf-8"))
    rows = {row["protocol"]: row for row in document["claims"]}
    protocols = []
    for path in sorted(PROTOCOLS.glob("*.toml")):
        recipe = tomllib.loads(path.read_text(encoding="utf-8"))
        protocols.append(Protocol(path.stem, recipe, rows.get(path.stem)))
    return sorted(protocols, key=lambda one: (one.is_own, one.row is None))


def as_table(headings: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    """Cells as a table of Markdown."""
    lines = [f"| {' | '.join(cells)} |" for cells in (headings, *rows)]
    lines.insert(1, "|---" * len(headings) + "|")
    return "\n".join(lines)


def filled(text: str) -> str:
    """A paragraph in lines; a command is not broken."""
    whole = CODE.sub(lambda match: match[0].replace(" ", "\0"), text)
    lines = textwrap.fill(whole, WIDTH, break_on_hyphens=False, break_long_words=False)
    return lines.replace("\0", " ")


def verdict_of(row: dict[str, Any]) -> str:
    """The verdict, and of an undecided claim the seeds that would decide it."""
    verdict = str(row["verdict"])
    if row["further_seeds"]:
        verdict += ", seeds {} to {} would decide".format(*row["further_seeds"])
    return verdict


def effect_of(row: dict[str, Any]) -> str:
    """The effect with its interval, in points."""
    low, high = (100 * bound for bound in row["interval"])
    return f"{100 * row['effect']:+.2f} ({low:+.2f} to {high:+.2f}) points"


def summary(protocols: Sequence[Protocol], page: str = "") -> str:
    """A line for each claim.

    Args:
        protocols: in order.
        page: that has their sections; by default the one with the table.
    """

    def rows() -> Iterator[tuple[str, ...]]:
        for protocol in protocols:
            row = protocol.row
            link = f"[{protocol.claim['statement']}]({page}#{protocol.name})"
            planned = f"{protocol.claim['cost']:.1f} planned"
            if row is None:
                yield link, "open", "-", "-", planned
                continue
            published = f"{100 * row['published_effect']:+.2f}"
            hours = f"{row['cost']:.1f}"
            yield link, f"**{verdict_of(row)}**", effect_of(row), published, hours

    return as_table(("claim", "verdict", "effect, 95 % interval", "published", "hours"), rows())


def costs(protocols: Sequence[Protocol]) -> str:
    """What all trainings take by the plan, as a sentence and a table."""
    claims = {protocol.name: protocol.claim for protocol in protocols}
    published = [one.claim["cost"] for one in protocols if not one.is_own]
    sentence = (
        f"All {len(published)} published claims take {sum(published):.1f} core-hours, by the plan. "
        "`python -m claims` says how many are left."
    )
    rows = (
        (
            f"`{name}`",
            f"{claim['seeds']} seeds of {len(claim['arms'])} arms",
            f"{claim['cost']:.1f}",
        )
        for name, claim in claims.items()
    )
    return filled(sentence) + "\n\n" + as_table(("claim", "trainings", "core-hours"), rows)


def section(protocol: Protocol) -> str:
    """Who said it, what was measured there, and, of a complete claim, what holds here."""
    claim = protocol.claim
    row = protocol.row
    published = claim["published"]
    head = filled(f"**{claim['statement']}** {claim['source']}. Published: {published}.")
    command = f"`python -m claims {protocol.name} --run`"
    if row is None:
        trainings = f"{claim['seeds']} seeds of {len(claim['arms'])} arms"
        plan = (
            f"**Open**, until all trainings are done: {trainings}, {claim['cost']:.1f} core-hours"
        )
        return f"{head}\n\n{filled(f'{plan} ({command}).')}"
    arms = row["arms"]
    better, worse = (f"{arms[row[side]]['network']} ({row[side]})" for side in COLORS)
    verdict = verdict_of(row)
    sentence = (
        f"**{verdict[0].upper()}{verdict[1:]}**: {better} against {worse} has an effect of "
        f"{effect_of(row)} in the direction of the claim; the published one is "
        f"{100 * row['published_effect']:+.2f}. p = {row['p_value']:.2g} among the claims of its "
        f"family; {row['seeds']} seeds of each arm, {row['cost']:.1f} hours ({command})."
    )
    alternative = f"{row['figure'].replace('_', ' ')} of each arm, and the effect"
    picture = f"![{alternative}](images/claims/{protocol.name}.svg)"
    return "\n\n".join((head, picture, filled(sentence), figures_table(protocol)))


def figures_table(protocol: Protocol) -> str:
    """The figures of the recipe for each arm, means over its seeds, in percent."""
    assert protocol.row is not None
    primary = protocol.row["figure"]
    repeated = {primary, "error"} if primary == "accuracy" else {primary}
    others = [name for name in protocol.recipe["figures"] if name not in repeated]
    trainings: dict[str, list[dict[str, float]]] = {}
    for path in sorted((TRAININGS / protocol.name).glob("*.json")):
        training = json.loads(path.read_text(encoding="utf-8"))
        if training["kind"] == "training":
            trainings.setdefault(training["arm"], []).append(training["figures"])

    def rows() -> Iterator[tuple[str, ...]]:
        assert protocol.row is not None
        for arm, about in protocol.row["arms"].items():
            cells = [f"{100 * about['mean']:.2f} ± {100 * about['deviation']:.2f}"]
            for name in others:
                figures = [one[name] for one in trainings[arm] if name in one]
                cells.append(f"{100 * statistics.mean(figures):.1f}" if figures else "-")
            yield arm, about["network"], *cells

    headings = [name.replace("_", " ") for name in (primary, *others)]
    return as_table(("arm", "network", f"{headings[0]}, %", *headings[1:]), rows())


def intervals_of(row: dict[str, Any]) -> Iterator[tuple[str, str, float, float]]:
    """Letter, network, mean and half the 95 % interval of the primary figure of each arm, in %."""
    seeds = row["seeds"]
    factor = float(student(seeds - 1).ppf((1 + LEVEL) / 2)) / math.sqrt(seeds)
    for arm, about in row["arms"].items():
        yield arm, about["network"], 100 * about["mean"], 100 * factor * about["deviation"]


class Axis(NamedTuple):
    """A scale of a picture, from the lowest to the highest number."""

    lowest: float
    highest: float

    @classmethod
    def around(cls, numbers: Sequence[float]) -> Axis:
        """A scale that has these numbers, and room beside them."""
        room = 0.06 * (max(numbers) - min(numbers)) or 1.0
        return cls(min(numbers) - room, max(numbers) + room)

    def place(self, number: float) -> str:
        """Where a number is, in pixels."""
        share = (number - self.lowest) / (self.highest - self.lowest)
        return f"{LABELS + SCALE * share:.1f}"

    def ticks(self) -> list[float]:
        """Round numbers of the scale, two to six."""
        rough = (self.highest - self.lowest) / 5
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
        first = math.ceil(self.lowest / step)
        last = math.floor(self.highest / step)
        return [round(step * k, 10) for k in range(first, last + 1)]


def line(x1: str, y1: float, x2: str, y2: float, color: str, style: str = "") -> str:
    """A line of SVG."""
    return f'<line x1="{x1}" y1="{y1:g}" x2="{x2}" y2="{y2:g}" stroke="{color}"{style}/>'


def label(x: str, y: float, text: str, color: str = INK, anchor: str = "start") -> str:
    """A text of SVG."""
    return f'<text x="{x}" y="{y:g}" fill="{color}" text-anchor="{anchor}">{escape(text)}</text>'


def interval(axis: Axis, y: float, bounds: tuple[float, float, float], color: str) -> list[str]:
    """A dot at the second of three numbers, and a line from the first to the last."""
    low, middle, high = bounds
    wide = ' stroke-width="3"'
    dot = f'<circle cx="{axis.place(middle)}" cy="{y:g}" r="5" fill="{color}"/>'
    return [line(axis.place(low), y, axis.place(high), y, color, wide), dot]


def scale_lines(axis: Axis, top: float, bottom: float) -> list[str]:
    """The ticks of a scale, with their numbers below."""
    parts = []
    for tick in axis.ticks():
        parts.append(line(axis.place(tick), top, axis.place(tick), bottom, LINE))
        parts.append(label(axis.place(tick), bottom + 16, f"{tick:g}", QUIET, "middle"))
    return parts


def picture(row: dict[str, Any]) -> str:
    """Each arm with the interval of its mean, and the effect between what refutes and is published.

    Args:
        row: of claims.json.

    Returns:
        SVG.
    """
    arms = list(intervals_of(row))
    y = 40.0
    bounds = [mean + sign * half for _, _, mean, half in arms for sign in (-1, 1)]
    axis = Axis.around(bounds)
    name = row["figure"].replace("_", " ")
    parts = [label(str(LABELS), 22, f"{name} in %, mean and 95 % interval", QUIET)]
    parts += scale_lines(axis, y - 8, y + ROW * len(arms))
    for arm, network, mean, half in arms:
        side = {row["better"]: "better", row["worse"]: "worse"}.get(arm, "")
        color = COLORS.get(side, QUIET)
        parts.append(label(str(LABELS - 14), y + 12, f"{network} ({arm})", color, "end"))
        parts += interval(axis, y + 8, (mean - half, mean, mean + half), color)
        y += ROW

    y += 58
    low, high = (100 * bound for bound in row["interval"])
    published = 100 * row["published_effect"]
    axis = Axis.around([0, low, high, published])
    title = f"effect in points, {row['better']} against {row['worse']}, and the published one"
    parts.append(label(str(LABELS), y - 18, title, QUIET))
    parts += scale_lines(axis, y - 8, y + ROW)
    parts.append(label(str(LABELS - 14), y + 12, row["verdict"], INK, "end"))
    dashed = ' stroke-dasharray="4 3" stroke-width="2"'
    parts.append(line(axis.place(0), y - 8, axis.place(0), y + ROW, INK))
    half_place = axis.place(published / 2)
    parts.append(line(half_place, y - 8, half_place, y + ROW, COLORS["worse"], dashed))
    x = float(axis.place(published))
    diamond = f"M{x:.1f} {y + 1:g}l7 7l-7 7l-7 -7z"
    parts.append(f'<path d="{diamond}" fill="none" stroke="{COLORS["worse"]}" stroke-width="2"/>')
    parts += interval(axis, y + 8, (low, 100 * row["effect"], high), COLORS["better"])
    note = "dashed: half the published effect (◇); an interval below it refutes"
    parts.append(label(str(LABELS + SCALE), y + ROW + 36, note, QUIET, "end"))

    longest = max(len(f"{network} ({arm})") for arm, network, _, _ in arms)
    left = min(0, LABELS - 14 - LETTER * longest)
    width = LABELS + SCALE + MARGIN - left
    height = y + ROW + 50
    frame = f'<rect x="{left}" width="{width}" height="{height:g}" rx="6" fill="#ffffff"/>'
    about = f"{escape(row['claim'])} {row['verdict']}: {effect_of(row)}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{left} 0 {width} {height:g}" '
        f'width="{width}" '
        f'font-family="system-ui, sans-serif" font-size="13" role="img"><title>{about}</title>'
    )
    return "\n".join((head, frame, *parts, "</svg>")) + "\n"


def tables(page: str) -> dict[str, str]:
    """What stands between the marks of a page, by their names.

    Args:
        page: name of its file.
    """
    protocols = load_protocols()
    if page == ROUTING_PAGE:
        return {"claims": summary([one for one in protocols if one.name in ROUTING], PAGE)}
    sections = {protocol.name: section(protocol) for protocol in protocols}
    return sections | {"claims": summary(protocols), "costs": costs(protocols)}


def pictures() -> dict[Path, str]:
    """The pictures of complete claims, by their files."""
    return {
        PICTURES / f"{protocol.name}.svg": picture(protocol.row)
        for protocol in load_protocols()
        if protocol.row is not None
    }


def write_pictures() -> None:
    """Write the pictures."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for path, text in pictures().items():
        path.write_text(text, encoding="utf-8")


def gaps(text: str) -> Iterator[str]:
    """What docs/claims.md lacks: a picture that is new, a reading of a complete claim.

    Args:
        text: of docs/claims.md.
    """
    for path, picture_text in pictures().items():
        if not path.exists() or path.read_text(encoding="utf-8") != picture_text:
            yield f"{path.name} is old: run python tools/make_results.py"
    for protocol in load_protocols():
        _, _, behind = text.partition(f"\n## {protocol.name}\n")
        if protocol.row is not None and READING not in behind.partition("\n## ")[0]:
            yield f"docs/claims.md has no reading of {protocol.name}: a paragraph with {READING}"

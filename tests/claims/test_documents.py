"""What docs/claims.md has of claims.json: lines, sections, pictures."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from claims.protocol import list_claims

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
make_claims = pytest.importorskip("make_claims", reason="needs a checkout")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """Rows of claims.json, of which a test may change what the tables are made of."""
    document = json.loads(make_claims.CLAIMS.read_text(encoding="utf-8"))
    file = tmp_path / "claims.json"

    def write():
        file.write_text(json.dumps(document))

    write()
    monkeypatch.setattr(make_claims, "CLAIMS", file)
    return document["claims"], write


def test_each_claim_has_a_line_and_a_section(rows):
    complete = [row["protocol"] for row in rows[0]]
    tables = make_claims.tables("claims.md")
    assert sorted(tables) == sorted([*list_claims(), "claims", "costs"])
    _, _, *lines = tables["claims"].splitlines()
    assert len(lines) == len(list_claims())
    for line, name in zip(lines, complete, strict=False):
        assert f"(#{name}) | **" in line
    assert all("| open | - |" in line for line in lines[len(complete) :])
    assert all("(#constellations)" not in line for line in lines[:13])
    assert "(claims.md#parse-tree)" in make_claims.tables("does-routing-help.md")["claims"]


def test_an_undecided_claim_names_the_seeds_that_would_decide(rows):
    row = rows[0][0]
    row |= {"verdict": "undecided", "further_seeds": [5, 11]}
    rows[1]()
    tables = make_claims.tables("claims.md")
    assert "**undecided, seeds 5 to 11 would decide**" in tables["claims"]
    assert "**Undecided, seeds 5 to 11 would decide**" in tables[row["protocol"]]


def test_a_picture_has_the_interval_of_each_arm_and_of_the_effect(rows):
    row = rows[0][0] | {"claim": "a < b & c"}
    picture = ElementTree.fromstring(make_claims.picture(row))
    circles = picture.findall(f"{SVG}circle")
    assert len(circles) == len(row["arms"]) + 1
    places = [float(circle.get("cx")) for circle in circles[:-1]]
    means = [about["mean"] for about in row["arms"].values()]
    by_mean = sorted(range(len(means)), key=means.__getitem__)
    assert [places[k] for k in by_mean] == sorted(places)
    width = float(picture.get("viewBox").split()[2])
    assert all(0 < place < width for place in places)


def test_intervals_of_equal_figures_are_points(rows):
    row = rows[0][0]
    for about in row["arms"].values():
        about |= {"mean": 0.5, "deviation": 0.0}
    assert {half for *_, half in make_claims.intervals_of(row)} == {0}
    ElementTree.fromstring(make_claims.picture(row))


def test_a_complete_claim_needs_a_reading(rows):
    text = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert list(make_claims.gaps(text)) == []
    name = rows[0][0]["protocol"]
    before, heading, behind = text.partition(f"\n## {name}\n")
    without = before + heading + behind.replace(make_claims.READING, "", 1)
    [gap] = make_claims.gaps(without)
    assert f"no reading of {name}" in gap

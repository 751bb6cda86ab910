"""The tables of the page are those of the file of results."""

import json
from pathlib import Path

from benchmarks.audit import format_tables
from benchmarks.report import CHECKOUT, RESULTS


def test_the_page_has_the_figures_of_the_file():
    audits = json.loads((RESULTS / "audit.json").read_text(encoding="utf-8"))["audits"]
    page = Path(CHECKOUT / "docs" / "audit.md").read_text(encoding="utf-8")
    lines = [line for line in "\n".join(format_tables(audits)).splitlines() if line]
    assert len(lines) > 40
    assert [line for line in lines if line not in page] == []

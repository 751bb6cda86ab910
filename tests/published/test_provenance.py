"""Every golden file has its source, and all of them are small."""

import tomllib
from pathlib import Path

from published.golden_file import FOLDER

TOOLS = Path(__file__).resolve().parents[2] / "tools" / "golden"
MAX_BYTES = 1_500_000  # of the folder


def test_sources():
    sources = tomllib.loads((FOLDER / "provenance.toml").read_text())
    assert set(sources) == {path.stem for path in FOLDER.glob("*.npz")}
    for source in sources.values():
        assert len(source["commit"]) == 40
        assert (TOOLS / source["script"]).exists()


def test_size():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < MAX_BYTES

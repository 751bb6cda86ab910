from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from torchcaps.viz.canvas import new_figure
from torchcaps.viz.names import class_indices, short, short_names


def test_figures_are_bounded() -> None:
    assert new_figure(100, 100).get_size_inches().tolist() == [16, 20]
    assert new_figure(3, 4).get_size_inches().tolist() == [3, 4]


def test_long_names_lose_their_middle() -> None:
    assert short("airplane", 8) == "airplane"
    assert short("aeroplanes", 8) == "aero…nes"
    assert len(short("x" * 99, 8)) == 8


def test_names_stay_on_one_line_and_are_no_formulas() -> None:
    assert short("a\nb\tc", 10) == "a b c"
    assert short("$x$", 10) == r"\$x\$"


def test_names_that_become_alike_are_told_apart_by_their_index() -> None:
    assert short_names(["sign 1 of the road", "sign 2 of the road"], 9) == [
        "0: s…road",
        "1: s…road",
    ]
    assert short_names(["cat", "dog"], 9) == ["cat", "dog"]
    assert short_names(["cat", "cat"], 9) == ["cat", "cat"]


def test_class_indices() -> None:
    assert class_indices("labels", [0, 2], 3, n=2).tolist() == [0, 2]
    with pytest.raises(ValueError, match=r"labels: expected \[n=2\], got \[n=1\]"):
        class_indices("labels", [0], 3, n=2)
    with pytest.raises(ValueError, match="labels: expected class indices from 0 to 2, got 3"):
        class_indices("labels", [0, 3], 3, n=2)


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    monkeypatch.delitem(sys.modules, "torchcaps.viz.canvas")
    with pytest.raises(
        ImportError,
        match=r"plots need matplotlib; install it with: pip install 'torchcaps\[plots\]'",
    ):
        importlib.import_module("torchcaps.viz.canvas")


def test_no_global_state_of_matplotlib_is_touched() -> None:
    script = (
        # Read past RcParams, which looks for a display when it is asked for its backend.
        "import matplotlib, sys; before = list(dict.items(matplotlib.rcParams))\n"
        "from torchcaps import viz\n"
        "viz.curves([{'val_loss': 1.0}])\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
        "assert list(dict.items(matplotlib.rcParams)) == before\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0

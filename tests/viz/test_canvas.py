import importlib
import sys
from pathlib import Path

import matplotlib
import pytest

from torchcaps import viz
from torchcaps.viz.canvas import new_figure, short, short_names


def test_figures_are_bounded():
    assert new_figure(100, 100).get_size_inches().tolist() == [16, 20]
    assert new_figure(3, 4).get_size_inches().tolist() == [3, 4]


def test_long_names_lose_their_middle():
    assert short("airplane", 8) == "airplane"
    assert short("aeroplanes", 8) == "aero…nes"


def test_names_stay_on_one_line_and_are_no_formulas():
    assert short("a\nb\tc", 10) == "a b c"
    assert short("$x$", 10) == r"\$x\$"


def test_names_that_become_equal_get_their_index():
    names = short_names(["sign 1 of the road", "sign 2 of the road"], 9)
    assert names == ["0: s…road", "1: s…road"]
    assert short_names(["cat", "dog"], 9) == ["cat", "dog"]


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    monkeypatch.delitem(sys.modules, "torchcaps.viz.canvas")
    with pytest.raises(ImportError, match=r"pip install 'torchcaps\[plots\]'"):
        importlib.import_module("torchcaps.viz.canvas")


def test_no_global_state_of_matplotlib_is_touched():
    # Read past RcParams, which looks for a display when it is asked for its backend.
    settings = list(dict.items(matplotlib.rcParams))
    viz.curves([{"val_loss": 1.0}])
    assert list(dict.items(matplotlib.rcParams)) == settings
    for path in Path(viz.__file__).parent.glob("*.py"):
        assert "pyplot" not in path.read_text(encoding="utf-8")

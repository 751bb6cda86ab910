"""Entry points: loaded when a name is missing, once, and told of where they fail."""

from __future__ import annotations

import subprocess
import sys
import warnings
from importlib import metadata

import pytest

import torchcaps as tc
from torchcaps import plugins
from torchcaps.errors import UnknownNameError
from torchcaps.nn import create_router, list_routers, routers
from torchcaps.nn.routers import UniformRouting

BROKEN = "the plug-in 'bad' of an unknown package cannot be loaded (AttributeError: "


def register():
    """What an entry point may name: a function without arguments."""
    assert "dynamic" in list_routers()  # a plug-in may ask while it is loaded
    routers.register_router("from-outside")(UniformRouting)


def fail():
    raise SystemExit("no")


@pytest.fixture
def install(monkeypatch):
    """Install entry points of this file, by name; gives what was asked for."""
    for name in ("_failures", "_loaded"):
        monkeypatch.setattr(plugins, name, type(getattr(plugins, name))())
    monkeypatch.setattr(routers.ROUTERS, "_entries", dict(routers.ROUTERS._entries))
    asked = []

    def these(**points):
        def entry_points(group):
            asked.append(group)
            return [
                metadata.EntryPoint(name, f"{__name__}:{value}", group)
                for name, value in points.items()
            ]

        monkeypatch.setattr(metadata, "entry_points", entry_points)
        return asked

    return these


@pytest.mark.parametrize("ask", [list_routers, lambda: create_router("from-outside")])
def test_they_are_loaded_once_when_a_name_is_missing(install, ask):
    asked = install(good="register")
    create_router("dynamic")
    assert asked == []
    ask()
    ask()
    assert asked == ["torchcaps.plugins"]
    assert "from-outside" in list_routers()


def test_one_that_fails_is_a_warning_once_and_a_hint(install):
    install(bad="nothing", good="register", worse="fail")
    with pytest.warns(UserWarning, match="plug-in") as caught:
        create_router("from-outside")
    assert str(caught[0].message).startswith(BROKEN)
    assert (
        str(caught[1].message)
        == "the plug-in 'worse' of an unknown package cannot be loaded (SystemExit: no)"
    )
    with warnings.catch_warnings(action="error"):
        assert "from-outside" in list_routers()
    with pytest.raises(UnknownNameError) as error:
        tc.create_model("matrix_cap_smal")
    assert str(error.value).startswith(
        "unknown model 'matrix_cap_smal'; did you mean 'matrix_caps_small' or 'matrix_caps'"
    )
    assert f"? ({BROKEN}" in str(error.value)
    with pytest.raises(UnknownNameError, match="the plug-in 'bad'"):
        tc.data.load_dataset("nothing")


def test_the_package_is_named(monkeypatch, tmp_path):
    (tmp_path / "mine-1.dist-info").mkdir()
    (tmp_path / "mine-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: mine\nVersion: 1\n"
    )
    (tmp_path / "mine-1.dist-info" / "entry_points.txt").write_text(
        "[torchcaps.plugins]\nx = no_such_module\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("_failures", "_loaded"):
        monkeypatch.setattr(plugins, name, type(getattr(plugins, name))())
    told = []
    plugins.load_entry_points(told.append)
    why = "(ModuleNotFoundError: No module named 'no_such_module')"
    assert told == [f"the plug-in 'x' of the package mine cannot be loaded {why}"]


def test_an_import_of_the_library_loads_none(tmp_path):
    (tmp_path / "mine-1.dist-info").mkdir()
    (tmp_path / "mine-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: mine\nVersion: 1\n"
    )
    (tmp_path / "mine-1.dist-info" / "entry_points.txt").write_text(
        "[torchcaps.plugins]\nx = told_of\n"
    )
    (tmp_path / "told_of.py").write_text("")
    code = (
        f"import sys; sys.path.append({str(tmp_path)!r}); import torchcaps, torchcaps.data, torchcaps.models, "
        "torchcaps.reproduction; torchcaps.data.load_dataset; assert 'told_of' not in sys.modules; "
        "torchcaps.data.list_datasets(); assert 'told_of' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_words_that_import_modules_again_are_quoted():
    assert plugins.flags(["a", "b c.py"]) == " --import a --import 'b c.py'"
    assert plugins.flags([]) == plugins.flags() == ""

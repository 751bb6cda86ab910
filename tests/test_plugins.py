"""Entry points: loaded when a name is missing, once; one that fails is reported, and adds nothing."""

import subprocess
import sys
import warnings
from importlib import metadata

import pytest

import torchcaps as tc
from torchcaps import plugins
from torchcaps.errors import UnknownNameError
from torchcaps.nn import create_router, list_routers, register_router
from torchcaps.nn.routers import ROUTERS, UniformRouting

BROKEN = "the plug-in 'bad' of an unknown package cannot be loaded (AttributeError: "


def register():
    """An entry point may name a function without arguments."""
    assert "dynamic" in list_routers()  # a plug-in may ask while it is loaded
    register_router("from-outside")(UniformRouting)


def fail():
    register_router("half-registered")(UniformRouting)
    raise SystemExit("no")


@pytest.fixture
def not_loaded(monkeypatch, restore):
    """The state of a process that has loaded no plug-in."""
    monkeypatch.setattr(plugins, "_failures", [])
    monkeypatch.setattr(plugins, "_loaded", set())
    restore(ROUTERS)


@pytest.fixture
def install(not_loaded, monkeypatch):
    """Installs functions of this file as entry points, by name; gives the groups asked for."""
    groups = []

    def install_entry_points(**functions):
        def entry_points(group):
            groups.append(group)
            return [
                metadata.EntryPoint(name, f"{__name__}:{function}", group)
                for name, function in functions.items()
            ]

        monkeypatch.setattr(metadata, "entry_points", entry_points)
        return groups

    return install_entry_points


def install_package(folder, module):
    """A package `mine` whose entry point names a module, as pip leaves it."""
    info = folder / "mine-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[torchcaps.plugins]\nx = {module}\n")


@pytest.mark.parametrize("ask", [list_routers, lambda: create_router("from-outside")])
def test_they_are_loaded_once_when_a_name_is_missing(install, ask):
    groups = install(good="register")
    create_router("dynamic")
    assert groups == []
    ask()
    ask()
    assert groups == ["torchcaps.plugins"]
    assert "from-outside" in list_routers()


def test_a_slip_of_a_known_name_is_no_name_of_a_plug_in(not_loaded):
    assert plugins.unknown_note("epoch", ["epochs", "lr"]) == ""
    assert plugins.unknown_note("grain", ["training", "graph"]).endswith("--import MODULE")


def test_one_that_fails_is_a_warning_once_and_a_hint(install):
    install(bad="nothing", good="register", worse="fail")
    with pytest.warns(UserWarning, match="plug-in") as caught:
        create_router("from-outside")
    first, second = (str(warning.message) for warning in caught)
    assert first.startswith(BROKEN)
    assert second.endswith("'worse' of an unknown package cannot be loaded (SystemExit: no)")
    with warnings.catch_warnings(action="error"):
        assert "from-outside" in list_routers()
    with pytest.raises(UnknownNameError) as error:
        tc.create_model("matrix_cap_smal")
    assert "did you mean 'matrix_caps_small' or 'matrix_caps'" in str(error.value)
    assert f"? ({BROKEN}" in str(error.value)


@pytest.mark.filterwarnings("ignore:the plug-in")
def test_one_that_fails_half_way_adds_nothing(install):
    install(good="register", worse="fail")
    assert "from-outside" in list_routers()
    assert "half-registered" not in list_routers()


def test_a_module_that_fails_half_way_adds_nothing(not_loaded, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "fails_half_way.py"
    file.write_text(f"from {__name__} import fail\nfail()")
    with pytest.raises(plugins.PluginError, match="SystemExit: no"):
        plugins.import_module(str(file))
    assert "half-registered" not in list_routers()


def test_the_package_is_named(not_loaded, monkeypatch, tmp_path):
    install_package(tmp_path, "no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    sentences = []
    plugins.load_entry_points(sentences.append)
    reason = "(ModuleNotFoundError: No module named 'no_such_module')"
    assert sentences == [f"the plug-in 'x' of the package mine cannot be loaded {reason}"]


def test_an_import_of_the_library_loads_none(tmp_path):
    install_package(tmp_path, "asked_for")
    (tmp_path / "asked_for.py").write_text("")
    code = f"""
import sys
sys.path.append({str(tmp_path)!r})
import torchcaps.data, torchcaps.models, torchcaps.reproduction
assert "asked_for" not in sys.modules
torchcaps.data.list_datasets()
assert "asked_for" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_flags_that_import_modules_again_are_quoted():
    assert plugins.flags(["a", "b c.py"]) == " --import a --import 'b c.py'"
    assert plugins.flags([]) == plugins.flags() == ""

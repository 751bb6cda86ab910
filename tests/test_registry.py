"""An addition to a package is one file; a taken name is refused."""

import pytest

import torchcaps as tc
from torchcaps import kernels, models, nn, ops
from torchcaps.errors import ArgumentError, UnknownNameError
from torchcaps.kernels import registry
from torchcaps.models._registry import MODELS
from torchcaps.nn.routers import ROUTERS
from torchcaps.registry import Registry, import_submodules

ROUTER = """
from torchcaps.nn.routers import DynamicRouting, register_router

@register_router("from_a_file")
class FromAFile(DynamicRouting):
    pass
"""
MODEL = """
from torchcaps.models._registry import register_variant

register_variant("from_a_file", "capsnet", channels=8, primary_types=2)
"""
KERNEL = """
from torchcaps.functional import dynamic_routing
from torchcaps.kernels.registry import fast_path

@fast_path("dynamic_routing", "from_a_file", lambda votes: "a test", rank=50, reason="")
def run(votes, **options):
    return dynamic_routing(votes, **options)
"""


@pytest.fixture
def add_file(monkeypatch, tmp_path):
    """Adds a file, and a private one whose import would fail, to those of a package."""

    def add(package, text):
        (tmp_path / "added_by_a_test.py").write_text(text)
        (tmp_path / "_private.py").write_text("raise RuntimeError('imported')")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
        import_submodules(package.__name__)

    return add


def test_a_router_is_one_file(add_file):
    with ROUTERS.restored():
        add_file(nn, ROUTER)
        assert "from_a_file" in tc.nn.list_routers()
        assert tc.nn.CapsuleLinear(6, 4, 5, 4, "from_a_file").router.describe() == "from_a_file"
    with pytest.raises(UnknownNameError):
        tc.nn.create_router("from_a_file")


def test_a_model_is_one_file(add_file, restore):
    restore(MODELS)
    add_file(models, MODEL)
    assert tc.create_model("from_a_file").num_classes == 10


def test_a_fast_path_is_one_file(add_file, monkeypatch):
    monkeypatch.setattr(registry, "PATHS", dict(registry.PATHS))
    add_file(kernels, KERNEL)
    assert "from_a_file" in ops.implementations("dynamic_routing")


def test_a_fast_path_replaces_that_of_its_name(monkeypatch):
    monkeypatch.setattr(registry, "PATHS", {})
    for run in (min, max):
        registry.fast_path("route", "loops", lambda votes: None, rank=1, reason="")(run)
    assert [path.run for path in registry.PATHS["route"]] == [max]


def test_a_taken_name_is_refused():
    shapes = Registry("shape")
    shapes.add("square", 4, reads=["side"])
    with pytest.raises(ArgumentError, match="shape: 'square' is registered already"):
        shapes.add("square", 5)
    shapes.add("square", 5, reads=["area"], replace=True)
    assert shapes["square"] == 5
    assert shapes.fact("square") == ["area"]

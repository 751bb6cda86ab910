"""The router of docs/adding-a-router.md through the commands, with no change to the library."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import torchcaps as tc
from torchcaps.nn import routers as registry

from .conftest import python_block, succeed

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-router.md"


@pytest.fixture
def softened(tmp_path, restore):
    """The file of the page, imported; its name is forgotten afterwards."""
    restore(registry.ROUTERS)
    (tmp_path / "softened.py").write_text(python_block(PAGE), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("softened", tmp_path / "softened.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_router_is_trained_read_back_and_evaluated_by_name(softened, command, start, no_plots):
    options = "--option routing=softened --option temperature=1.5 --output run"
    succeed(command(start, options.split()))
    router = tc.load("run").class_capsules.router
    assert isinstance(router, softened.SoftenedRouting)
    assert router.temperature == 1.5
    assert command("evaluate", "run").status == 0

"""The names that `claims` registers are known in these tests alone."""

import sys

import pytest

import torchcaps.reproduction.run  # noqa: F401 (all registries)
from torchcaps import plugins

_without = [save() for save in plugins.SAVES]
import claims  # noqa: E402, F401

_with = [save() for save in plugins.SAVES]
for _restore in _without:
    _restore()


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    monkeypatch.setattr(plugins, "_imported", [])
    before = [save() for save in plugins.SAVES]
    for restore in _with:
        restore()
    yield
    for restore in before:
        restore()


@pytest.fixture
def unregistered(_registered, monkeypatch):
    """As before `claims` was imported."""
    for restore in _without:
        restore()
    for name in [name for name in sys.modules if name.partition(".")[0] == "claims"]:
        monkeypatch.delitem(sys.modules, name)

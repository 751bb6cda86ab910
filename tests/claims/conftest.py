"""The names that `claims` registers are known in these tests alone."""

import pytest

import torchcaps.reproduction  # noqa: F401 (its registries)
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

"""Layers and routers of other code, checked by the command line."""

from __future__ import annotations

import sys
from functools import partial

import pytest

from torchcaps import plugins

from .conftest import assert_fails

LAYERS = """
import torch
from torch import nn
from torchcaps.functional import squash
from torchcaps.types import Routed

class Layer(nn.Module):
    def __init__(self, keeps=False):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(6, 3, 4, 8, generator=generator) / 3)
        self.keeps = keeps
        self.logits = 0.0

    def forward(self, poses):
        with torch.autocast("cpu", enabled=False):
            votes = torch.einsum("ijhd,bid->bijh", self.weight, poses.to(self.weight.dtype))
            logits = self.logits + 0 * votes[..., 0]
            for _ in range(3):
                coupling = logits.softmax(-1)
                parents = squash((coupling[..., None] * votes).sum(1))
                logits = logits + (votes * parents[:, None]).sum(-1)
            if self.keeps:
                self.logits = logits.detach().mean(0, keepdim=True)
            return parents

def over_children(votes, activation):
    coupling = torch.full_like(votes[..., 0], 1 / votes.shape[-3])
    parents = squash((coupling[..., None] * votes).sum(-3))
    return Routed(parents, parents.norm(dim=-1), coupling)
"""


@pytest.fixture
def checked(command, tmp_path, monkeypatch):
    """A function that checks a name of the file above, which is forgotten afterwards."""
    (tmp_path / "checked_layers.py").write_text(LAYERS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(plugins, "_imported", [])
    yield partial(command, "check")
    sys.modules.pop("checked_layers", None)


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        ("checked_layers.py:Layer", 0, "holds  A sample's outcome depends on neither"),
        (
            "checked_layers.py:Layer --option keeps=true",
            1,
            "FAILS  A sample's outcome depends on",
        ),
        ("checked_layers.py:over_children", 1, "sum of couplings over parents"),
        ("checked_layers.py:Layer --shape 5x8", 1, "size"),
    ],
)
def test_a_layer_from_anywhere_is_checked(checked, words, status, sentence):
    outcome = checked(words)
    assert outcome.status == status
    assert sentence in outcome.out.replace("\n    ", " ")
    assert ("FAILS" in outcome.out) == bool(status)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("checked_layers.py", "layer: expected FILE.py:NAME, got checked_layers.py"),
        ("checked_layers.py:Absent", "Absent: expected a name in checked_layers.py"),
        ("checked_layers.py:Layer --option width=1", "options: Layer takes others ("),
    ],
)
def test_what_is_no_layer_is_refused(checked, words, sentence):
    assert_fails(checked(words), 2, sentence)

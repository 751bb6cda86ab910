"""Experiments that take seconds: tiny networks, few of the package's digits."""

from __future__ import annotations

from torchcaps.training import load_recipe

SINGLE = """
title = "two networks"
published = "nothing"
figures = ["error", "uniform_at_test_error"]
measures = ["ablation"]
[run]
model = "capsnet"
model_options = { channels = 8, primary_types = 2, decoder = false }
data = "digits"
epochs = 1
epoch_size = 64
batch_size = 32
holdout = 40
reconstruction = 0
device = "cpu"
checkpoint_every = 1
[budgets.small]
cost = "seconds"
[budgets.full]
cost = "more seconds"
run = { epochs = 2 }
[[rows]]
name = "CapsNet, tiny"
published = { error = "1 %" }
[[rows]]
name = "CNN"
run.model = "cnn_matched"
run.model_options = { channels = 8, primary_types = 2, decoder = false }
"""


def recipe_of(folder, content=SINGLE, **changes):
    """A recipe read from a file; changes are replacements of text."""
    for old, new in changes.items():
        content = content.replace(old, new)
    file = folder / "mine.toml"
    file.write_text(content)
    return load_recipe(str(file))

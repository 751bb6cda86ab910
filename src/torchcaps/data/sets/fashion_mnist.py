"""Fashion-MNIST: articles of clothing (Xiao, Rasul, Vollgraf 2017, arXiv:1708.07747)."""

from dataclasses import replace
from pathlib import Path

from torchcaps.data._registry import register_derived, set_facts
from torchcaps.data.idx import register_idx
from torchcaps.data.sources import published_set

INFO = published_set(
    "fashion-mnist",
    system_folders=(Path("/usr/share/datasets/fashion-mnist"),),
)
TREE = set_facts("fashion-mnist-tree")

register_idx(INFO)
register_derived(INFO, lambda images, _: replace(images, classes=TREE["classes"]), **TREE)

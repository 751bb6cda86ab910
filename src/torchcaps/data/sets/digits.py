"""The embedded digits: a class-balanced subset of MNIST that comes with the package and needs no download."""

from dataclasses import replace
from pathlib import Path

from torchcaps.data.idx import register_idx
from torchcaps.data.sets.mnist import INFO as MNIST

FOLDER = Path(__file__).parents[1] / "embedded"
INFO = replace(
    MNIST, name="digits", title="6,000 + 1,000 digits of MNIST, in the package", train=6_000, test=1_000,
    sha256={
        "train-images-idx3-ubyte": "276107be590759c3f0926df722c4de39cdda1227591a1ecd47a184690a8ebf06",
        "train-labels-idx1-ubyte": "68a5c4f7f395a30b3c9c1866520c6eee961a3d0347446a56e17e4f65c8dfbbc6",
        "t10k-images-idx3-ubyte": "08212e895b958225f959f761e33da53e35faa44cebc75e329dcaa7b477fbddc0",
        "t10k-labels-idx1-ubyte": "a8455fc3bf4f53a12fd7fac83ac10b16241e37d6ab97bdfad5c2ebdffb543bea",
    },
    sources=(), embedded=FOLDER,
)  # fmt: skip
register_idx(INFO)

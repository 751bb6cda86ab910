"""Arrays saved by numpy: an `.npz` of images and labels or of points, or an `.npy` of each."""

from collections.abc import Container
from pathlib import Path

from torchcaps.data._registry import SPLITS_WITH_VAL, ReadRequest, register_format
from torchcaps.data.classes import first_labels
from torchcaps.data.dataset import Dataset, numbered
from torchcaps.data.entries import in_split
from torchcaps.data.pixels import array_images
from torchcaps.data.points import select_points
from torchcaps.data.reading import open_arrays
from torchcaps.data.targets import read_targets
from torchcaps.errors import ArgumentError, DataError, MissingSplitError
from torchcaps.types import StrPath

# Names of images and labels, of one split or of a file without splits.
ARRAY_NAMES = (
    "x_{split} y_{split}",
    "{split}_images {split}_labels",
    "images labels",
    "x y",
    "{split}_images {split}_masks",
    "images masks",
    "{split}_images {split}_values",
    "images values",
)


def read_arrays(path: StrPath, request: ReadRequest) -> Dataset:
    """Read images and labels from `.npz`, or from `NAME.npy` with its labels in `NAME_labels.npy`.

    An `.npz` holds `images` and `labels` (or `x` and `y`), or the same for each split: `x_train`,
    `y_train`, `x_test`, `y_test` (or `train_images`, …), and of "val" where there is an official
    validation split, as in MedMNIST. Without such splits 20 % of each class are
    the test split, chosen by `stratified_split` with seed 0. `classes` may hold the names of the
    classes. Nothing is unpickled.

    Images are `[n, height, width]`, `[n, height, width, channels]` or `[n, channels, height,
    width]`, where the one axis of at most 4 is the channels. They are uint8, uint16 (65535 becomes
    255), or floats in [0, 1]. Labels are `[n]` or `[n, 1]`: integers from 0, or names; or in another
    form of `torchcaps.data.targets`, such as 0 and 1 `[n, classes]`, masks and real numbers. Masks
    may also be called so: `masks`, `train_masks`, .... `values` are numbers to predict, also whole
    ones.

    Args:
        path: of the file.
        request: its split is read, and the images are brought to its size and channels.

    Returns:
        The images of that split.

    Raises:
        DataError: damaged, pickled, an array missing, an ambiguous layout, values out of range,
            NaN.
        MissingSplitError: there are no arrays of the split "val".
    """
    path = Path(path)
    with open_arrays(path) as arrays:
        if points := select_points(path, arrays, request):
            return points
        names = _array_names(arrays, request.split)
        training_names = _array_names(arrays, "train")
        if not names:
            raise MissingSplitError(
                f"{path}: expected the arrays images and labels, or x_{request.split} and "
                f"y_{request.split}, got {', '.join(arrays) or 'none'}"
            )
        images, labels = arrays[names[0]], arrays[names[1]]
        if labels.shape[:1] != images.shape[:1]:
            raise DataError(f"{path}: labels {list(labels.shape)} for images {list(images.shape)}")
        training_labels = arrays[training_names[1]] if training_names else labels
        key = "value" if names[1].endswith("values") else "label"
        classes = tuple(map(str, arrays["classes"].flat)) if "classes" in arrays else ()
        indices = classes
        if classes and labels.dtype.kind != "U":
            indices = numbered(str(path), len(classes) - 1)
        try:
            # In the form of the training split, and with its classes.
            read = read_targets({key: training_labels}, indices)
            read = read_targets({key: labels}, read.classes, forms=read.forms)
        except ArgumentError as error:
            raise DataError(f"{path}: {error}") from None
        pixels = array_images(str(path), images, request.in_chans)
    dataset = Dataset(pixels, read.tensors, classes or read.classes, path.stem)
    if request.split in names[0]:  # the arrays are of a split
        return dataset
    return dataset.subset(in_split(str(path), first_labels(dataset.labels), request))


register_format(
    "an .npz or .npy file",
    lambda path: path.suffix.lower() in (".npz", ".npy"),
    read_arrays,
    splits=SPLITS_WITH_VAL,
)


def _array_names(arrays: Container[str], split: str) -> tuple[str, str] | None:
    """Names of the images and labels of a split, or of all; None where they are not there."""
    for pair in ARRAY_NAMES:
        images, labels = pair.format(split=split).split()
        if images in arrays and labels in arrays:
            return images, labels
    return None

"""What a person knows of each image, as the targets of a set.

A form says how it is written. It is chosen once for all images, because a part of them may look
like another form, and kept for their batches:

    form      written as                                        target
    classes   whole numbers or names [n] or [n, 1]              "label"
    one_hot   0 and 1 [n, classes], a single 1 in each row      "label"
    hot       0 and 1 [n, classes]                              "labels"
    lists     lists of the numbers or names of classes          "labels"
    masks     class of each pixel [n, height, width], or an     "mask"
              axis more, of length 1 or with a 1 for the class
    values    real numbers [n] or [n, values]                   "value"

What may be of two forms is refused, unless the target that the task takes decides it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from torchcaps.data.dataset import numbered
from torchcaps.data.images import natural_key
from torchcaps.data.pixels import MAX_MASK_VALUE, tensor_array
from torchcaps.errors import ArgumentError
from torchcaps.types import Names, Tensors

# Names in a mapping, and the target that each of them is.
TARGET_KEYS = {
    "label": "label",
    "labels": "label",
    "target": "label",
    "mask": "mask",
    "masks": "mask",
    "value": "value",
}
SEQUENCES = (list, tuple, set, np.ndarray)


class Form(NamedTuple):
    """How a target is written.

    Attributes:
        kind: "classes", "one_hot", "hot", "lists", "masks" or "values".
        axis: of masks, the one that is no axis of space; None where there is none.
    """

    kind: str
    axis: int | None = None


class Targets(NamedTuple):
    """Targets of a set.

    Attributes:
        classes: their names; of values alone, those of the columns.
        tensors: targets by name, with a row an image.
        forms: of the targets, by the names under which they were given.
    """

    classes: Names
    tensors: Tensors
    forms: dict[str, Form]


def read_targets(
    labels: Any,
    classes: Names = (),
    *,
    num_classes: int | None = None,
    target: str | None = None,
    forms: Mapping[str, Form] | None = None,
) -> Targets:
    """Targets by name, as a set has them.

    Args:
        labels: in one of the forms, or a mapping of several by name, such as {"mask": masks};
            arrays, tensors or lists.
        classes: their names, where they are known.
        num_classes: of the model, if known.
        target: that the task takes, where it is known: "label", "labels", "mask" or "value".
        forms: of targets of the same origin; None chooses them.

    Returns:
        Names of the classes, the targets, and their forms.

    Raises:
        ArgumentError: other forms, two forms that are possible, or what is no class.
    """
    tensors: Tensors = {}
    form_of = dict(forms or {})
    for key, rows in (labels if isinstance(labels, Mapping) else {"label": labels}).items():
        name = TARGET_KEYS.get(key, key)
        array = to_array(rows)
        if name not in TARGET_KEYS:
            tensors[name] = torch.as_tensor(array)
            continue
        if key not in form_of:
            form_of[key] = _choose_form(array, target if name == "label" else name)
        target_name, encoded, classes = _encode(array, form_of[key], classes, num_classes)
        tensors[target_name] = encoded
    if not classes and "value" in tensors:
        classes = tuple(f"value {index}" for index in range(tensors["value"].shape[1]))
    return Targets(classes, tensors, form_of)


def to_array(rows: Any) -> np.ndarray:
    """Rows as an array; rows of several lengths as an array `[n]` of them."""
    if isinstance(rows, Tensor):
        return tensor_array(rows)
    if isinstance(rows, list | tuple) and rows and isinstance(rows[0], Tensor):
        rows = list(map(to_array, rows))
    try:
        # Python numbers in an array of objects, such as a column of pandas, become an array again.
        return np.asarray(rows.tolist() if str(getattr(rows, "dtype", "")) == "object" else rows)
    except ValueError:
        return np.fromiter(rows, object)


def _is_whole(array: np.ndarray) -> bool:
    """Whether all are whole numbers."""
    return array.dtype.kind in "biuf" and bool((array == array.round()).all())


def _choose_form(array: np.ndarray, target: str | None) -> Form:
    """The form of all rows; `target` is what the task takes, if known."""
    kind = array.dtype.kind
    is_number = kind in "biuf"
    if array.ndim not in (1, 2):
        return Form("masks", _class_axis(array))
    if is_number and (target == "value" or not _is_whole(array)):
        return Form("values")
    if array.size == len(array):
        is_list = kind == "O" and all(isinstance(row, SEQUENCES) for row in array.flat)
        return Form("lists" if is_list else "classes")
    columns = array.shape[1]
    if np.isin(array, (0, 1)).all():
        is_single = bool((array.sum(axis=1) == 1).all())
        if not is_single or columns > 2 or kind in "bf" or target == "label":
            return Form("one_hot" if is_single and target != "labels" else "hot")
        problem = "two columns of 0 and 1 can be read in two ways: give booleans"
    elif not is_number or target == "labels":
        return Form("lists")
    elif kind == "f":
        return Form("values")
    else:
        problem = (
            f"whole numbers {list(array.shape)} can be read in several ways: give floats for values "
            "to predict; 0 and 1 [n, classes]"
        )
    count = array.max() + 1
    raise ArgumentError(
        "labels",
        f"{problem} where each column says whether an image is of this class; and for a string of "
        "classes in its order 0 and 1 for each place and class, as "
        f"numpy.eye({count}, dtype=bool)[labels].reshape(-1, {columns * count})",
    )


def _class_axis(masks: np.ndarray) -> int | None:
    """The axis of masks that is none of space: of length 1, or with a 1 for the class."""
    if masks.ndim == 3:
        return None
    axes = [axis for axis in (1, 3) if masks.ndim == 4 and masks.shape[axis] == 1]
    if masks.ndim == 4 and not axes and len(np.unique(masks)) == 2:
        axes = [axis for axis in (1, 3) if ((masks > 0).sum(axis=axis) == 1).all()]
    if len(axes) == 1:
        return axes[0]
    raise ArgumentError(
        "labels",
        "expected classes [n], 0 and 1 [n, classes], values [n, values], or masks "
        "[n, height, width], where an axis before or behind them may have length 1, or a single 1 "
        f"for the class of each pixel, got {list(masks.shape)}, where "
        f"{'both' if axes else 'none'} of them do",
    )


def _encode(
    array: np.ndarray, form: Form, classes: Names, num_classes: int | None
) -> tuple[str, Tensor, Names]:
    """A target with its name, and the names of its classes, which are `classes` if known."""
    if form.kind == "values":
        return "value", torch.as_tensor(array).float().reshape(len(array), -1), classes
    if form.kind == "classes":
        array = array.ravel()
        classes = classes or class_names(array, num_classes)
        return "label", known_indices(array, classes), classes
    if form.kind == "lists":
        lists = [to_array(list(row)) for row in array]
        classes = classes or class_names(np.concatenate(lists), num_classes)
        hot = torch.zeros(len(lists), len(classes), dtype=torch.uint8)
        for index, row in enumerate(lists):
            if len(np.unique(row)) < len(row):
                raise ArgumentError(
                    "labels", f"expected each class of an image once, got {row.tolist()}"
                )
            hot[index, known_indices(row, classes)] = 1
        return "labels", hot, classes
    expected = len(classes) or num_classes
    if form.kind == "masks":
        array = _mask_indices(array, form.axis, expected or 0)
        count = max(2, int(array.max()) + 1)
    else:
        count = array.shape[1]
        if not np.isin(array, (0, 1)).all():
            raise ArgumentError("labels", f"expected 0 and 1, got {array.max():g}")
    if expected and (count > expected or (count < expected and form.kind != "masks")):
        raise _count_error(expected, count)
    rows = torch.from_numpy(array.astype(np.uint8))
    classes = classes or numbered("labels", (expected or count) - 1)
    if form.kind == "one_hot":
        return "label", rows.argmax(dim=1), classes
    return "mask" if form.kind == "masks" else "labels", rows, classes


def _mask_indices(masks: np.ndarray, axis: int | None, num_classes: int) -> np.ndarray:
    """The class of each pixel, `[n, height, width]`."""
    if axis is not None:
        if masks.shape[axis] > 1:
            return masks.argmax(axis)
        masks = masks.squeeze(axis)
    largest = max(MAX_MASK_VALUE, num_classes - 1)
    if largest < 255 and np.isin(masks, (0, 255)).all():
        return masks > 0
    if not _is_whole(masks) or masks.min() < 0 or masks.max() > largest:
        raise ArgumentError(
            "labels",
            f"expected masks of whole numbers, classes 0 to {largest} or 0 and 255 alone, "
            f"got {np.unique(masks)[[0, -1]].tolist()}",
        )
    return masks


def _count_error(expected: int, got: int) -> ArgumentError:
    return ArgumentError(
        "labels",
        f"expected {expected} classes, as the model has, got {got}; build it with num_classes={got}",
    )


def class_names(labels: np.ndarray, num_classes: int | None = None) -> Names:
    """The names of the classes of labels, in natural order.

    Numbers from 0 are indices. Numbers that begin later, as 1 to 3, are names, unless all of them
    are indices of the model's classes.

    Args:
        labels: `[n]` whole numbers, or names.
        num_classes: of the model, if known.

    Raises:
        ArgumentError: other labels, or names that are not as many as the model's classes.
    """
    are_numbers = labels.size and _is_whole(labels) and labels.min() >= 0
    if not (are_numbers or labels.dtype.kind == "U"):
        raise ArgumentError(
            "labels", f"expected whole numbers from 0, or names, got {labels[:3].tolist()}"
        )
    if are_numbers:
        count = int(labels.max()) + 1
        expected = num_classes or count
        if labels.min() == 0 or count <= (num_classes or 0):
            if count > expected:
                raise _count_error(expected, count)
            return numbered("labels", expected - 1)
        labels = labels.astype(np.int64)
    names = tuple(sorted(np.unique(labels.astype(str)).tolist(), key=natural_key))
    if num_classes not in (None, len(names)):
        raise _count_error(num_classes, len(names))
    return names


def known_indices(labels: np.ndarray, classes: Names) -> Int64[Tensor, " n"]:
    """Labels `[n]` as indices into classes that are known already.

    Labels are names of classes; whole numbers are indices where no class is called by a number.

    Raises ArgumentError for a label that is none of them.
    """
    index = {name: number for number, name in enumerate(classes)}
    if _is_whole(labels):
        labels = labels.astype(np.int64)
    try:
        return torch.tensor([index[str(label)] for label in labels.tolist()], dtype=torch.int64)
    except KeyError as error:
        is_inside = labels.dtype.kind in "iu" and 0 <= labels.min() <= labels.max() < len(classes)
        if is_inside and not any(map(str.isdecimal, classes)):
            return torch.as_tensor(labels)
        raise ArgumentError(
            "labels", f"expected one of {', '.join(classes)}, got {error.args[0]}"
        ) from None

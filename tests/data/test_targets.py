"""Forms of what a person knows of each image, and what each of them becomes."""

import numpy as np
import pytest
import torch

from torchcaps.data.targets import read_targets
from torchcaps.errors import ArgumentError

MASK = np.array([[0, 1, 2], [0, 0, 2]])
MASKS = np.stack([MASK, MASK[:, ::-1]])  # of two images, 2 x 3 pixels
HALF = np.stack([MASK > 0, MASK == 0])


@pytest.mark.parametrize(
    ("labels", "target", "name", "rows", "classes"),
    [
        ([2, 0, 1], None, "label", [2, 0, 1], "012"),
        (torch.tensor([[2], [0], [1]]), None, "label", [2, 0, 1], "012"),
        (np.array([1.0, 0.0]), None, "label", [1, 0], "01"),
        (np.array(["b", "a"], dtype=object), None, "label", [1, 0], "ab"),
        (np.array([1, 0], dtype=object), None, "label", [1, 0], "01"),
        (torch.eye(3)[[2, 0]], None, "label", [2, 0], "012"),
        (torch.eye(3)[[2, 0]], "labels", "labels", [[0, 0, 1], [1, 0, 0]], "012"),
        ([[True, False], [False, True]], None, "label", [0, 1], "01"),
        (np.eye(2, dtype=int), "label", "label", [0, 1], "01"),
        (np.eye(2, dtype=int), "value", "value", [[1.0, 0.0], [0.0, 1.0]], None),
        ([[1, 0], [1, 1]], None, "labels", [[1, 0], [1, 1]], "01"),
        (np.array([[1.0, 0, 1], [0, 1, 0]]), None, "labels", [[1, 0, 1], [0, 1, 0]], "012"),
        ([[2], [0, 1]], None, "labels", [[0, 0, 1], [1, 1, 0]], "012"),
        ([{"dog"}, {"cat", "dog"}], None, "labels", [[0, 1], [1, 1]], ("cat", "dog")),
        ([["b", "a"], ["b", "c"]], None, "labels", [[1, 1, 0], [0, 1, 1]], "abc"),
        ([torch.tensor([0, 2]), torch.tensor([1])], None, "labels", [[1, 0, 1], [0, 1, 0]], "012"),
        ([[0, 2], [2, 1]], "labels", "labels", [[1, 0, 1], [0, 1, 1]], "012"),
        (MASKS, None, "mask", MASKS, "012"),
        (MASKS[..., None].astype(np.uint8), None, "mask", MASKS, "012"),
        (torch.tensor(MASKS)[:, None].float(), None, "mask", MASKS, "012"),
        (np.eye(3)[MASKS], None, "mask", MASKS, "012"),
        (np.moveaxis(np.eye(3, dtype=bool)[MASKS], 3, 1), None, "mask", MASKS, "012"),
        (255 * HALF.astype(np.uint8)[:, None], None, "mask", HALF, "01"),
        ({"masks": HALF}, None, "mask", HALF, "01"),
        ([0.5, -2.0], None, "value", [[0.5], [-2.0]], None),
        (np.array([[0.5, 3.0], [1.0, 2.0]]), None, "value", [[0.5, 3.0], [1.0, 2.0]], None),
        (np.array([[4.0, 3.0], [1.0, 2.0]]), None, "value", [[4.0, 3.0], [1.0, 2.0]], None),
        ([3, 17], "value", "value", [[3.0], [17.0]], None),
        (torch.tensor([1, 0], dtype=torch.bfloat16), None, "label", [1, 0], "01"),
        (torch.tensor([0.5, 2]).bfloat16(), None, "value", [[0.5], [2.0]], None),
        ({"value": [3, 17]}, None, "value", [[3.0], [17.0]], None),
    ],
)
def test_each_form_becomes_the_target_that_it_says(labels, target, name, rows, classes):
    read = read_targets(labels, target=target)
    assert list(read.tensors) == [name]
    expected = {"label": torch.int64, "value": torch.float32}.get(name, torch.uint8)
    assert torch.equal(read.tensors[name], torch.tensor(np.asarray(rows), dtype=expected))
    if classes is not None:
        assert read.classes == tuple(classes)


@pytest.mark.parametrize(
    ("labels", "options", "sentence"),
    [
        ([[1, 0], [0, 1]], {}, "two columns of 0 and 1 can be read in two ways: .*booleans.*eye"),
        (np.eye(2, dtype=int), {"target": "labels"}, "can be read in two ways"),
        ([[3, 7], [1, 4]], {}, r"whole numbers \[2, 2\] .* floats .* 0 and 1 .* numpy.eye\(8"),
        ([[3, 7], [4, 4]], {"target": "labels"}, r"each class of an image once, got \[4, 4\]"),
        ([[0], [0, 7]], {"num_classes": 4}, "expected 4 classes, .* num_classes=8"),
        (np.eye(3)[:, [0, 0, 1]], {"num_classes": 4}, "expected 4 classes, .* num_classes=3"),
        (np.ones((2, 3)), {"num_classes": 2}, "expected 2 classes, .* num_classes=3"),
        (MASKS, {"num_classes": 2}, "expected 2 classes, as the model has, got 3"),
        (MASKS * 100, {}, r"classes 0 to 32 or 0 and 255 alone, got \[0, 200\]"),
        (MASKS / 2, {}, "expected masks of whole numbers"),
        (np.zeros((2, 3, 4, 3)), {}, r"got \[2, 3, 4, 3\], where none of them do"),
        (np.eye(2)[np.arange(4).reshape(2, 2) % 2][:, :, None], {}, "where both of them do"),
        (
            np.zeros((2, 2, 2, 2, 2)),
            {},
            r"expected classes \[n\], 0 and 1 .* got \[2, 2, 2, 2, 2\]",
        ),
        ([1, -1], {}, "expected whole numbers from 0, or names"),
        ([(1, MASK), (0, MASK)], {}, "expected whole numbers from 0, or names"),
        ([], {}, r"expected whole numbers from 0, or names, got \[\]"),
    ],
)
def test_what_is_no_form_or_two_is_refused_in_one_sentence(labels, options, sentence):
    with pytest.raises(ArgumentError, match=sentence):
        read_targets(labels, **options)


@pytest.mark.parametrize(
    ("whole", "part", "rows"),
    [
        ([[0, 1], [1, 2], [0]], [[1, 0], [0, 1]], [[1, 1, 0], [1, 1, 0]]),  # lists, not rows of 0
        ([[0, 1], [1, 1]], [[0, 1], [1, 0]], [[0, 1], [1, 0]]),  # rows, not two ways
        ([0.5, 2.0], [2.0, 1.0], [[2.0], [1.0]]),  # values, not classes
        (255 * HALF, np.zeros((1, 2, 3), int), np.zeros((1, 2, 3), int)),
        (np.eye(3)[MASKS], np.eye(3)[MASKS[:1]], MASKS[:1]),
        (["a", "b", "c"], ["c"], [2]),
    ],
)
def test_a_part_is_read_in_the_form_of_the_whole(whole, part, rows):
    read = read_targets(whole)
    [tensor] = read_targets(part, read.classes, forms=read.forms).tensors.values()
    assert tensor.tolist() == np.asarray(rows).tolist()

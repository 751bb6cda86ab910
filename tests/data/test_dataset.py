"""What a `Dataset` accepts, and what it gives."""

from dataclasses import replace

import pytest
import torch
from torch.utils.data import DataLoader

from torchcaps.data import Dataset, masked_set
from torchcaps.data.dataset import concatenate

from .makers import refusal

CLASSES = ("a", "b", "c")
LABELS = torch.tensor([0, 1, 2, 0])
IMAGES = torch.arange(4 * 2 * 3).view(4, 1, 2, 3).to(torch.uint8)


def make_set(images=IMAGES, labels=LABELS, classes=CLASSES, **options):
    return Dataset(images, {"label": labels}, classes, "toy", **options)


@pytest.fixture
def grouped():
    """Eight images of two classes; toys 0 and 1 of each."""
    factors = {"toy": torch.arange(8) // 2 % 2, "light": torch.arange(8)}
    images = torch.rand(8, 1, 2, 2)
    return Dataset(
        images,
        {"label": torch.arange(8) // 4, **factors},
        ("a", "b"),
        "toys",
        groups=factors["toy"],
    )


def test_it_describes_itself():
    images = make_set()
    assert (len(images), images.img_size, images.in_chans, images.num_classes) == (4, (2, 3), 1, 3)
    assert repr(images) == "Dataset('toy': 4 images 1 × 2 × 3 uint8, 3 classes: a, b, c)"
    long = make_set(classes=tuple("abcdefghijkl"))
    assert "12 classes: a, b, c, d, e, f, g, h, i, j and 2 more)" in repr(long)


@pytest.mark.parametrize("indices", [[2, 0], torch.tensor([2, 0])])
def test_a_subset_keeps_order_and_classes(indices):
    subset = make_set(groups=torch.arange(4)).subset(indices)
    assert subset.labels.tolist() == subset.groups.tolist() == [2, 0]
    assert subset.images[:, 0, 0, 0].tolist() == [12, 0]
    assert subset.classes == CLASSES


def test_float_images_of_bytes_are_scaled():
    images = make_set(torch.tensor([0, 51, 255, 255], dtype=torch.uint8).view(4, 1, 1, 1))
    assert images.float_images().flatten().tolist() == pytest.approx([0, 0.2, 1, 1])
    assert images.float_images([1]).flatten().tolist() == pytest.approx([0.2])
    assert images.float_images(torch.tensor([1])).dtype == torch.float32
    assert images.images.flatten().tolist() == [0, 51, 255, 255]


def test_float_images_of_floats_are_themselves():
    floats = torch.rand(4, 1, 2, 2)
    assert torch.equal(make_set(floats).float_images([3, 1]), floats[[3, 1]])


@pytest.mark.parametrize("pixel", [float("nan"), float("inf"), -float("inf")])
def test_a_non_finite_pixel_names_its_image(pixel):
    images = torch.rand(4, 1, 2, 2)
    images[2, 0, 1, 1] = pixel
    with refusal(r"toy: image 2 \(one of 1\) holds NaN"):
        make_set(images)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.full((4, 1, 2, 2), 1.5), r"expected float pixels in \[0, 1\], got 1.5 to 1.5"),
        (torch.zeros(4, 2, 2), r"expected images \[n, channels, height, width\], got \[4, 2, 2\]"),
        (torch.zeros(4, 1, 0, 2), r"got \[n=4, channels=1, height=0, width=2\]"),
        (torch.zeros(0, 1, 2, 2), "there are no images"),
        (torch.zeros(4, 1, 2, 2, dtype=torch.float64), "uint8 or float32, got torch.float64"),
    ],
)
def test_unsuitable_images_are_refused(images, message):
    labels = torch.zeros(len(images), dtype=torch.int64)
    with refusal(message):
        make_set(images, labels)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 1, 3, 0]), r"label 3 of image 2 lies outside the 3 classes \(0 to 2\)"),
        (torch.tensor([0, 1, 2]), r"a 'label' for each of 4 images, .* got \[3\]"),
        (torch.tensor([0.0, 1, 2, 0]), "of torch.float32"),
    ],
)
def test_unsuitable_labels_are_refused(labels, message):
    with refusal(message):
        make_set(labels=labels)


def test_unsuitable_classes_are_refused():
    with refusal("two classes have the same name"):
        make_set(classes=("a", "b", "a"))
    with refusal("at least two classes, got a"):
        make_set(labels=torch.zeros(4, dtype=torch.int64), classes=("a",))
    with refusal("two classes have the same name"):
        Dataset(IMAGES, {"labels": torch.ones(4, 2)}, ("a", "a"), "toy")
    with refusal("at least two classes, got background"):
        masks = torch.zeros(4, 2, 3, dtype=torch.uint8)
        Dataset(IMAGES, {"mask": masks}, ("background",), "toy")


def test_sets_with_files_become_one_without():
    part = make_set(files=("1", "2", "3", "4"))
    joined = concatenate([part, part])
    assert joined.subset([5]).labels.tolist() == [1]
    assert joined.files == ()


def test_targets_belong_to_images():
    with refusal(r"expected a 'toy' for each of 4 images, .* got \[3\]"):
        replace(make_set(), targets={"toy": torch.zeros(3)})
    with refusal(r"a 'group' for each of 4 images, \[4\] of torch.int64, got \[3\]"):
        make_set(groups=torch.zeros(3, dtype=torch.int64))


def test_a_batch_has_the_images_and_the_targets_that_are_asked_for(grouped):
    [batch] = grouped.batches([torch.tensor([3, 1])], {"light": grouped.targets["light"]})
    torch.testing.assert_close(batch.inputs, grouped.images[[3, 1]])
    assert {name: rows.tolist() for name, rows in batch.targets.items()} == {"light": [3, 1]}
    assert batch.indices.tolist() == [3, 1]


def test_torch_loads_it(grouped):
    inputs, targets = next(iter(DataLoader(grouped, batch_size=3)))
    assert torch.equal(inputs, grouped.images[:3])
    assert targets["light"].tolist() == [0, 1, 2]


def test_masks_are_resized_and_cropped_as_their_images():
    masks = torch.zeros(2, 6, 9, dtype=torch.uint8)
    masks[:, :, :3] = 1
    images = masked_set(255 * masks.unsqueeze(1), masks, ("a", "b"), "thirds")
    for part in (images.resized((12, 18), None), images.cropped(4)):
        assert torch.equal(part.targets["mask"] == 1, part.images.squeeze(1) > 127)

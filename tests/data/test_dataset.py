import pytest
import torch

from torchcaps.data import ImageSet
from torchcaps.errors import DataError, UnknownNameError

CLASSES = ("a", "b", "c")


def made(images=None, labels=None, classes=CLASSES, **known):
    images = torch.arange(4 * 2 * 3).view(4, 1, 2, 3).to(torch.uint8) if images is None else images
    labels = torch.tensor([0, 1, 2, 0]) if labels is None else labels
    return ImageSet(images, labels, classes, "toy", **known)


def test_describes_itself():
    toy = made()
    assert (len(toy), toy.img_size, toy.in_chans, toy.num_classes) == (4, (2, 3), 1, 3)
    assert repr(toy) == "ImageSet('toy': 4 images 1 × 2 × 3 uint8, 3 classes: a, b, c)"


def test_long_lists_of_classes_are_cut_short():
    toy = made(classes=tuple("abcdefghij"))
    assert "10 classes: a, b, c, d, …, j)" in repr(toy)


@pytest.mark.parametrize("indices", [[2, 0], torch.tensor([2, 0])])
def test_subset_keeps_order_and_classes(indices):
    some = made().subset(indices)
    assert some.labels.tolist() == [2, 0]
    assert some.images[:, 0, 0, 0].tolist() == [12, 0]
    assert some.classes == CLASSES


def test_float_images_of_bytes_are_scaled():
    toy = made(images=torch.tensor([0, 51, 255, 255], dtype=torch.uint8).view(4, 1, 1, 1))
    assert toy.float_images().flatten().tolist() == pytest.approx([0, 0.2, 1, 1])
    assert toy.float_images([1]).flatten().tolist() == pytest.approx([0.2])
    assert toy.float_images(torch.tensor([1])).dtype == torch.float32
    assert toy.images.flatten().tolist() == [0, 51, 255, 255]


def test_float_images_of_floats_are_themselves():
    images = torch.rand(4, 1, 2, 2)
    assert torch.equal(made(images=images).float_images([3, 1]), images[[3, 1]])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_non_finite_pixels_name_the_image(bad):
    images = torch.rand(4, 1, 2, 2)
    images[2, 0, 1, 1] = bad
    with pytest.raises(DataError, match=r"toy: image 2 \(one of 1\) holds NaN or infinite pixels"):
        made(images=images)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.full((4, 1, 2, 2), 1.5), r"expected float pixels in \[0, 1\], got 1.5 to 1.5"),
        (torch.full((4, 1, 2, 2), -0.5), r"expected float pixels in \[0, 1\], got -0.5"),
        (torch.zeros(4, 2, 2), r"expected images \[n, channels, height, width\], got \[4, 2, 2\]"),
        (torch.zeros(4, 1, 0, 2), r"got \[n=4, channels=1, height=0, width=2\]"),
        (torch.zeros(0, 1, 2, 2), "there are no images"),
        (torch.zeros(4, 1, 2, 2, dtype=torch.float64), "uint8 or float32, got torch.float64"),
    ],
)
def test_bad_images(images, message):
    with pytest.raises(DataError, match=message):
        made(images=images, labels=torch.zeros(len(images), dtype=torch.int64))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 1, 3, 0]), r"label 3 of image 2 lies outside the 3 classes \(0 to 2\)"),
        (torch.tensor([-1, 1, 2, 0]), "label -1 of image 0 lies outside"),
        (torch.tensor([0, 1, 2]), r"one int64 label for each of 4 images, got labels \[3\]"),
        (torch.tensor([0.0, 1, 2, 0]), "of torch.float32"),
    ],
)
def test_bad_labels(labels, message):
    with pytest.raises(DataError, match=message):
        made(labels=labels)


def test_bad_classes():
    with pytest.raises(DataError, match="two classes have the same name"):
        made(classes=("a", "b", "a"))
    with pytest.raises(DataError, match="at least two classes, got a"):
        made(labels=torch.zeros(4, dtype=torch.int64), classes=("a",))


def grouped():
    """Eight images of two classes; toys 0 and 1 of each."""
    factors = {"toy": torch.arange(8) // 2 % 2, "light": torch.arange(8)}
    return ImageSet(
        torch.rand(8, 1, 2, 2), torch.arange(8) // 4, ("a", "b"), "g", factors, group="toy"
    )


def test_factors_go_with_their_images():
    part = grouped().subset([5, 0])
    assert {name: values.tolist() for name, values in part.factors.items()} == {
        "toy": [0, 0],
        "light": [5, 0],
    }
    assert part.group == "toy"


def test_a_holdout_keeps_groups_together():
    kept, held = grouped().train_val_split(0.5)
    sides = [
        set(zip(s.labels.tolist(), s.factors["toy"].tolist(), strict=True)) for s in (kept, held)
    ]
    assert not sides[0] & sides[1]
    assert sides[0] | sides[1] == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert (len(kept), len(held)) == (4, 4)
    assert sorted(kept.factors["light"].tolist() + held.factors["light"].tolist()) == list(range(8))


def test_a_draw_of_single_images_is_the_images():
    whole, generator = grouped(), torch.Generator().manual_seed(0)
    drawn = whole.sample_batch(torch.tensor([3, 1]), generator=generator)
    torch.testing.assert_close(drawn.images, whole.images[[3, 1]])
    assert (drawn.labels.tolist(), drawn.singles) == ([0, 0], None)


def test_bad_factors():
    with pytest.raises(DataError, match=r"expected a 'toy' for each of 4 images, got \[3\]"):
        made(factors={"toy": torch.zeros(3)})
    with pytest.raises(UnknownNameError, match="unknown factor 'toys'; did you mean 'toy'"):
        made(factors={"toy": torch.zeros(4)}, group="toys")

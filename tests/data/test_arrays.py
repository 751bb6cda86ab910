"""Files of numpy: their names, layouts, types and labels, and what is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from torchcaps.data import load_dataset

from .makers import assert_refused

IMAGES = np.random.default_rng(0).integers(0, 256, (20, 6, 5), dtype=np.uint8)
LABELS = np.arange(20) % 4


@pytest.fixture
def save(tmp_path):
    """Writes arrays into an .npz."""

    def write(**arrays):
        np.savez(tmp_path / "own.npz", **arrays)
        return tmp_path / "own.npz"

    return write


@pytest.fixture
def save_npy(tmp_path):
    """Writes images into an .npy, and labels into another beside it."""

    def write(images):
        np.save(tmp_path / "own.npy", images)
        np.save(tmp_path / "own_labels.npy", LABELS)
        return tmp_path / "own.npy"

    return write


def assert_both_splits_hold_all(path):
    """The two splits together hold every image with its label once."""
    stored = {image.tobytes(): label for image, label in zip(IMAGES, LABELS, strict=True)}
    for split in ("train", "test"):
        images = load_dataset(path, split)
        for image, label in zip(images.images.numpy(), images.labels.tolist(), strict=True):
            assert stored.pop(image.tobytes()) == label
    assert not stored


@pytest.mark.parametrize("names", [("images", "labels"), ("x", "y")])
def test_a_file_without_splits_is_split_by_class(save, names):
    path = save(**dict(zip(names, (IMAGES, LABELS), strict=True)))
    train = load_dataset(path)
    assert train.labels.bincount().tolist() == [4] * 4
    assert load_dataset(path, "test").labels.bincount().tolist() == [1] * 4
    assert train.classes == ("0", "1", "2", "3")
    assert train.name == "own"
    assert_both_splits_hold_all(path)


def test_splits_of_a_file_are_read(save):
    path = save(x_train=IMAGES, y_train=LABELS[:, None], x_test=IMAGES[:5], y_test=LABELS[:5])
    test = load_dataset(path, "test")
    assert np.array_equal(test.images[:, 0].numpy(), IMAGES[:5])
    assert test.labels.tolist() == [0, 1, 2, 3, 0]
    assert len(load_dataset(path)) == 20


def test_a_missing_split_is_named(save):
    path = save(x_train=IMAGES, y_train=LABELS)
    message = "expected the arrays images and labels, or x_test and y_test, got x_train, y_train"
    assert_refused(message, path, "test")


def test_an_npy_has_its_labels_beside_it(save_npy):
    path = save_npy(IMAGES)
    assert_both_splits_hold_all(path)
    path.with_name("own_labels.npy").unlink()
    message = r"own\.npy: expected its labels in own_labels\.npy beside it"
    assert_refused(message, path)


# Images.


@settings(deadline=None, max_examples=25)
@given(channels=st.integers(1, 4), height=st.integers(5, 9), width=st.integers(5, 9))
def test_channels_may_be_first_or_last(tmp_path_factory, channels, height, width):
    folder = tmp_path_factory.mktemp("npz")
    shape = (20, channels, height, width)
    first = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    for name, images in (("nchw", first), ("nhwc", np.moveaxis(first, 1, 3))):
        np.savez(folder / f"{name}.npz", x_train=images, y_train=LABELS)
        assert np.array_equal(load_dataset(folder / f"{name}.npz").images.numpy(), first)


@pytest.mark.parametrize("shape", [(20, 3, 8, 3), (20, 8, 8, 8), (20, 4, 1, 4)])
def test_an_ambiguous_layout_is_refused(save, shape):
    assert_refused(
        "cannot tell which axis", save(images=np.zeros(shape, dtype=np.uint8), labels=LABELS)
    )


def test_sixteen_bits_are_scaled(save):
    deep = np.linspace(0, 65535, IMAGES.size).astype(np.uint16).reshape(IMAGES.shape)
    images = load_dataset(save(x_train=deep, y_train=LABELS)).images[:, 0].numpy()
    assert np.array_equal(images, np.rint(deep / 257).astype(np.uint8))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_floats_stay_floats(save, dtype):
    floats = (IMAGES / 255).astype(dtype)
    images = load_dataset(save(x_train=floats, y_train=LABELS)).images
    assert images.dtype == torch.float32
    assert np.array_equal(images[:, 0].numpy(), floats.astype(np.float32))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (IMAGES.astype(np.int64), "expected images of type .*, got int64"),
        (IMAGES[:, 0], r"expected images of 3 or 4 axes, got shape \[20, 5\]"),
        (IMAGES[:19], r"labels \[20\] for images \[19, 6, 5\]"),
    ],
)
def test_unsuitable_images_are_refused(save, images, message):
    path = save(images=images, labels=LABELS)
    assert_refused(f"{path}: {message}", path)


# Labels.


def test_labels_may_be_names(save):
    names = np.array(["c10", "c2", "b", "a"])[LABELS]
    test = load_dataset(save(x_train=IMAGES, y_train=names, x_test=IMAGES, y_test=names), "test")
    assert test.classes == ("a", "b", "c2", "c10")
    assert np.array(test.classes)[test.labels].tolist() == names.tolist()


def test_classes_may_be_named(save):
    path = save(images=IMAGES, labels=LABELS, classes=np.array(list("wxyz")))
    assert load_dataset(path).classes == ("w", "x", "y", "z")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"classes": np.array(["a", "b"])}, "labels: expected one of 0, 1, got 2"),
        (
            {"labels": LABELS - 1},
            r"labels: expected whole numbers from 0, or names, got \[-1, 0, 1",
        ),
        ({"labels": LABELS[:, None] + [0, 1]}, r"labels: whole numbers \[20, 2\] can be read"),
    ],
)
def test_unsuitable_labels_are_refused(save, arrays, message):
    path = save(**{"images": IMAGES, "labels": LABELS} | arrays)
    assert_refused(f"{path}: {message}", path)


def test_a_test_label_beyond_the_training_classes_is_refused(save):
    path = save(x_train=IMAGES, y_train=LABELS, x_test=IMAGES, y_test=LABELS + 1)
    assert_refused("labels: expected one of 0, 1, 2, 3, got 4", path, "test")


HOT = np.eye(4, dtype=np.uint8)[LABELS] + np.eye(4, dtype=np.uint8)[(LABELS + 1) % 4]
INK = (IMAGES > 100).astype(np.uint8)


@pytest.mark.parametrize(
    ("labels", "target", "rows"),
    [
        ({"labels": HOT}, "labels", HOT),
        ({"labels": LABELS / 8}, "value", LABELS[:, None] / 8),
        ({"masks": 255 * INK[..., None]}, "mask", INK),
        ({"labels": LABELS.astype(float)}, "label", LABELS),
        ({"values": LABELS}, "value", LABELS[:, None]),
    ],
)
def test_targets_of_other_tasks_are_read_and_split(save, labels, target, rows):
    path = save(images=IMAGES, **labels)
    stored = {image.tobytes(): row.tolist() for image, row in zip(IMAGES, rows, strict=True)}
    for split, count in (("train", 16), ("test", 4)):
        images = load_dataset(path, split)
        assert [*images.targets] == [target]
        assert len(images) == count
        for image, row in zip(images.images.numpy(), images.targets[target], strict=True):
            assert stored.pop(image.tobytes()) == row.tolist()


def test_labels_of_the_test_split_have_the_form_of_the_training_labels(save):
    path = save(x_train=IMAGES, y_train=HOT, x_test=IMAGES[:4], y_test=np.eye(4)[:, ::-1])
    assert load_dataset(path, "test").targets["labels"].tolist() == np.eye(4)[::-1].tolist()


# Files.


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("ending", ["npz", "npy"])
def test_pickles_are_refused_unexecuted(tmp_path, save, save_npy, ending):
    trap = np.array([Trap(str(tmp_path / "sprung"))], dtype=object)
    path = save(images=trap, labels=LABELS) if ending == "npz" else save_npy(trap)
    assert_refused(f"{path}: cannot be read as an .{ending}", path)
    assert not (tmp_path / "sprung").exists()

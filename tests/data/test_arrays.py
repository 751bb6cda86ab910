import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from torchcaps.data import load_dataset
from torchcaps.errors import DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (20, 6, 5), dtype=np.uint8)
LABELS = np.arange(20) % 4


def saved(tmp_path, **arrays):
    np.savez(tmp_path / "own.npz", **arrays)
    return tmp_path / "own.npz"


def both(path, **options):
    """The two splits of a file as one set of (image, label), in no order."""
    found = [load_dataset(path, split, **options) for split in ("train", "test")]
    return {
        (i.numpy().tobytes(), int(k))
        for one in found
        for i, k in zip(one.images, one.labels, strict=True)
    }


@pytest.mark.parametrize("names", [("images", "labels"), ("x", "y")])
def test_a_whole_is_split_class_by_class(tmp_path, names):
    path = saved(tmp_path, **dict(zip(names, (IMAGES, LABELS), strict=True)))
    train, test = load_dataset(path), load_dataset(path, "test")
    assert train.labels.bincount().tolist() == [4] * 4
    assert test.labels.bincount().tolist() == [1] * 4
    assert train.classes == ("0", "1", "2", "3")
    assert train.name == "own"
    assert both(path) == {(i.tobytes(), int(k)) for i, k in zip(IMAGES, LABELS, strict=True)}


@pytest.mark.parametrize("names", [("x_{}", "y_{}"), ("{}_images", "{}_labels")])
def test_splits_of_the_file_are_kept(tmp_path, names):
    images, labels = names
    path = saved(
        tmp_path,
        **{images.format("train"): IMAGES, labels.format("train"): LABELS[:, None]},
        **{images.format("test"): IMAGES[:5], labels.format("test"): LABELS[:5]},
    )
    test = load_dataset(path, "test")
    assert np.array_equal(test.images[:, 0].numpy(), IMAGES[:5])
    assert test.labels.tolist() == [0, 1, 2, 3, 0]
    assert len(load_dataset(path)) == 20


def test_a_missing_split(tmp_path):
    path = saved(tmp_path, x_train=IMAGES, y_train=LABELS)
    with pytest.raises(
        DataError, match="expected images and labels of the 'test' split, got x_train, y_train"
    ):
        load_dataset(path, "test")


def test_npy_beside_its_labels(tmp_path):
    np.save(tmp_path / "own.npy", IMAGES)
    with pytest.raises(
        DataError, match=r"own\.npy: expected its labels in own_labels\.npy beside it"
    ):
        load_dataset(tmp_path / "own.npy")
    np.save(tmp_path / "own_labels.npy", LABELS)
    assert both(tmp_path / "own.npy") == {
        (i.tobytes(), int(k)) for i, k in zip(IMAGES, LABELS, strict=True)
    }


@settings(deadline=None)
@given(channels=st.integers(1, 4), height=st.integers(5, 9), width=st.integers(5, 9))
def test_both_layouts_are_one(tmp_path_factory, channels, height, width):
    folder = tmp_path_factory.mktemp("npz")
    first = np.random.default_rng(0).integers(0, 256, (20, channels, height, width), dtype=np.uint8)
    for name, images in (("nchw", first), ("nhwc", np.moveaxis(first, 1, 3))):
        np.savez(folder / f"{name}.npz", x_train=images, y_train=LABELS)
        assert np.array_equal(load_dataset(folder / f"{name}.npz").images.numpy(), first)


@pytest.mark.parametrize("shape", [(20, 3, 8, 3), (20, 8, 8, 8), (20, 4, 1, 4)])
def test_an_ambiguous_layout_is_refused(tmp_path, shape):
    with pytest.raises(DataError, match="cannot tell which axis"):
        load_dataset(saved(tmp_path, images=np.zeros(shape, dtype=np.uint8), labels=LABELS))


def test_sixteen_bits_are_scaled(tmp_path):
    deep = np.linspace(0, 65535, IMAGES.size).astype(np.uint16).reshape(IMAGES.shape)
    found = load_dataset(saved(tmp_path, x_train=deep, y_train=LABELS)).images[:, 0].numpy()
    assert np.array_equal(found, np.rint(deep / 257).astype(np.uint8))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_floats_stay_floats(tmp_path, kind):
    images = (IMAGES / 255).astype(kind)
    found = load_dataset(saved(tmp_path, x_train=images, y_train=LABELS)).images
    assert found.dtype == torch.float32
    assert np.array_equal(found[:, 0].numpy(), images.astype(np.float32))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (
            IMAGES * 1.0,
            r"expected float pixels in \[0, 1\], got 0 to 255; scale them, or store 0..255 as uint8",
        ),
        (IMAGES / 255 - 0.5, r"expected float pixels in \[0, 1\], got -0.5"),
        (
            IMAGES.astype(np.int64),
            "expected images of type uint8, uint16 or float in .*, got int64",
        ),
        (IMAGES[:, 0], r"expected images of 3 or 4 axes, got shape \[20, 5\]"),
        (IMAGES[:19], r"labels \[20\] for images \[19, 6, 5\]"),
    ],
)
def test_bad_images(tmp_path, images, message):
    path = saved(tmp_path, images=images, labels=LABELS)
    with pytest.raises(DataError, match=f"{path}: {message}"):
        load_dataset(path)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_names_the_image(tmp_path, bad):
    images = IMAGES / 255
    images[7, 2, 2] = bad
    path = saved(tmp_path, x_train=images, y_train=LABELS)
    with pytest.raises(DataError, match=f"{path}: image 7 .one of 1. holds NaN or infinite pixels"):
        load_dataset(path)


def test_labels_by_name(tmp_path):
    names = np.array(["c10", "c2", "b", "a"])[LABELS]
    path = saved(tmp_path, x_train=IMAGES, y_train=names, x_test=IMAGES, y_test=names)
    found = load_dataset(path, "test")
    assert found.classes == ("a", "b", "c2", "c10")
    assert [found.classes[k] for k in found.labels] == names.tolist()


def test_classes_given(tmp_path):
    found = load_dataset(
        saved(tmp_path, images=IMAGES, labels=LABELS, classes=np.array(list("wxyz")))
    )
    assert found.classes == ("w", "x", "y", "z")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"classes": np.array(["a", "b"])}, "label 2 of image 2 lies outside the 2 classes"),
        ({"labels": LABELS - 1}, "label -1 of image 0 lies outside the 3 classes"),
        ({"labels": LABELS * 0}, "expected at least two classes, got 0"),
        (
            {"labels": LABELS * 1.0},
            r"expected labels \[n\] of integers or names, got \[20\] of float64",
        ),
        (
            {"labels": np.eye(4, dtype=int)[LABELS]},
            r"expected labels \[n\] of integers or names, got \[20, 4\]",
        ),
        (
            {"labels": np.array(list("abcd"))[LABELS], "classes": np.array(list("abc"))},
            "label 'd' is not among the",
        ),
    ],
)
def test_bad_labels(tmp_path, extra, message):
    path = saved(tmp_path, **{"images": IMAGES, "labels": LABELS} | extra)
    with pytest.raises(DataError, match=f"{path}: {message}"):
        load_dataset(path)


def test_a_test_label_beyond_the_training_classes(tmp_path):
    path = saved(tmp_path, x_train=IMAGES, y_train=LABELS, x_test=IMAGES, y_test=LABELS + 1)
    with pytest.raises(DataError, match="label 4 of image 3 lies outside the 4 classes"):
        load_dataset(path, "test")


def test_wrong_keys(tmp_path):
    with pytest.raises(DataError, match=r"expected the arrays images and labels, .* got pictures"):
        load_dataset(saved(tmp_path, pictures=IMAGES))


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("ending", ["npz", "npy"])
def test_pickles_are_refused_unexecuted(tmp_path, ending):
    trap = np.array([Trap(str(tmp_path / "sprung"))], dtype=object)
    path = tmp_path / f"own.{ending}"
    if ending == "npz":
        np.savez(path, images=trap, labels=LABELS)
    else:
        np.save(path, trap)
        np.save(tmp_path / "own_labels.npy", LABELS)
    with pytest.raises(DataError, match=f"{path}: cannot be read as an .{ending}"):
        load_dataset(path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("kept", [0.0, 0.2, 0.6, 0.97])
def test_truncated_files(tmp_path, kept):
    for path in (saved(tmp_path, images=IMAGES, labels=LABELS), tmp_path / "own.npy"):
        if path.suffix == ".npy":
            np.save(path, IMAGES)
            np.save(tmp_path / "own_labels.npy", LABELS)
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * kept)])
        with pytest.raises(DataError, match=f"{path}: cannot be read"):
            load_dataset(path)

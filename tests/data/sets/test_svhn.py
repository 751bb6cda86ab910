import numpy as np
import pytest
import torch

from torchcaps.data import load_dataset, read_svhn
from torchcaps.errors import DataError

from ..mat_files import mat_bytes

IMAGES = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 12), dtype=np.uint8)
LABELS = np.array([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 1]], np.uint8).T


def write(path, images=IMAGES, labels=LABELS):
    path.write_bytes(mat_bytes({"X": images, "y": labels}))
    return path


@pytest.mark.parametrize("kind", ["uint8", "float64"])
def test_ten_is_the_digit_zero(tmp_path, kind):
    found = read_svhn(write(tmp_path / "train_32x32.mat", labels=LABELS.astype(kind)))
    assert found.labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 1]
    assert found.classes == tuple("0123456789")


def test_rows_columns_and_colors_stay_where_they_are(tmp_path):
    found = read_svhn(write(tmp_path / "train_32x32.mat"))
    assert found.images.shape == (12, 3, 32, 32)
    assert found.images[7, 2, 30, 5] == IMAGES[30, 5, 2, 7]
    torch.testing.assert_close(found.images, torch.from_numpy(IMAGES.transpose(3, 2, 0, 1).copy()))


def test_by_name_and_by_path(tmp_path):
    (tmp_path / "svhn").mkdir()
    write(tmp_path / "svhn" / "train_32x32.mat")
    write(tmp_path / "svhn" / "test_32x32.mat", IMAGES[..., :5], LABELS[:5])
    for found in (
        load_dataset("svhn", "test", tmp_path, cache_dir=tmp_path / "none"),
        load_dataset(tmp_path / "svhn", "test"),
    ):
        assert (len(found), found.name) == (5, "svhn")


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (
            IMAGES[:16],
            LABELS,
            r"expected X \[32, 32, 3, n\] of uint8, got \[16, 32, 3, 12\] of uint8",
        ),
        (IMAGES.astype(np.float64), LABELS, "got .* of float64"),
        (IMAGES, LABELS[:5], "5 labels for 12 images"),
        (IMAGES, LABELS - 1, "expected labels from 1 to 10, where 10 is the digit 0, got 0 to 9"),
        (IMAGES, "text", "expected the arrays X and y of SVHN, got X, y"),
    ],
)
def test_other_shapes_are_refused(tmp_path, images, labels, words):
    with pytest.raises(DataError, match=words):
        read_svhn(write(tmp_path / "a.mat", images, labels))


def test_one_split_alone(tmp_path):
    write(tmp_path / "train_32x32.mat")
    with pytest.raises(DataError, match=r"test_32x32\.mat"):
        load_dataset(tmp_path, "test")

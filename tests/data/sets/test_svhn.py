import numpy as np
import pytest
import torch

from torchcaps.data import load_dataset, read_svhn

from ..makers import assert_refused, refusal, write_mat

pytestmark = pytest.mark.usefixtures("mat_in_process")

IMAGES = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 12), dtype=np.uint8)
LABELS = np.array([[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 1]], np.uint8).T


def write(path, images=IMAGES, labels=LABELS):
    return write_mat(path, {"X": images, "y": labels})


def test_rows_columns_and_colors_stay_and_ten_is_the_digit_zero(tmp_path):
    digits = read_svhn(write(tmp_path / "train_32x32.mat", labels=LABELS.astype(float)))
    torch.testing.assert_close(digits.images, torch.from_numpy(IMAGES.transpose(3, 2, 0, 1).copy()))
    assert digits.labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0, 1]
    assert digits.classes == tuple("0123456789")


def test_by_name_and_by_path(tmp_path):
    folder = tmp_path / "svhn"
    write(folder / "test_32x32.mat", IMAGES[..., :5], LABELS[:5])
    by_name = load_dataset("svhn", "test", tmp_path, cache_dir=tmp_path / "none")
    by_path = load_dataset(folder, "test")
    assert [len(by_name), len(by_path)] == [5, 5]
    assert by_name.name == by_path.name == "svhn"
    assert_refused(r"train_32x32\.mat", folder, "train")


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (IMAGES[:16], LABELS, r"expected X \[32, 32, 3, .n.\] of uint8 .* got \[16, 32, 3, 12\]"),
        (IMAGES.astype(np.float64), LABELS, "got .* of float64"),
        (IMAGES, LABELS[:5], "and 5 of uint8"),
        (IMAGES, LABELS - 1, "expected labels from 1 to 10, where 10 is the digit 0"),
        (IMAGES, "text", "expected X .* and n labels in y"),
    ],
)
def test_other_shapes_are_refused(tmp_path, images, labels, words):
    with refusal(words):
        read_svhn(write(tmp_path / "a.mat", images, labels))

import numpy as np
import pytest
import torch

from torchcaps.data import load_dataset, read_affnist

from ..makers import assert_refused, refusal, write_mat

pytestmark = pytest.mark.usefixtures("mat_in_process")

COUNT = 6
IMAGES = np.random.default_rng(0).integers(0, 256, (COUNT, 40, 40), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5, 9])


def write(path, **changes):
    fields = {
        "affine_matrix": np.zeros((6, COUNT)),
        "image": IMAGES.reshape(COUNT, 1600).T.copy(),
        "label_int": LABELS[None].astype(np.uint8),
        "original_id": np.arange(1.0, COUNT + 1)[None],
    }
    return write_mat(path, {"affNISTdata": fields | changes})


def test_images_are_upright_and_know_their_originals(tmp_path):
    digits = read_affnist(write(tmp_path / "1.mat"))
    torch.testing.assert_close(digits.images[:, 0], torch.from_numpy(IMAGES))
    assert digits.labels.tolist() == LABELS.tolist()
    assert digits.targets["original"].tolist() == [0, 1, 2, 3, 4, 5]
    assert torch.equal(digits.groups, digits.targets["original"])


def test_without_originals_there_is_no_group(tmp_path):
    digits = read_affnist(write(tmp_path / "1.mat", original_id=np.zeros(0)))
    assert (digits.groups, [*digits.targets]) == (None, ["label"])


def test_files_of_a_split_in_natural_order(tmp_path):
    folder = tmp_path / "affnist" / "transformed" / "test_batches"
    for number in (10, 2):
        write(folder / f"{number}.mat", image=np.full((1600, COUNT), number, np.uint8))
    digits = load_dataset("affnist", "test", tmp_path, cache_dir=tmp_path / "none")
    assert digits.images[::COUNT, 0, 0, 0].tolist() == [2, 10]
    train, val = digits.train_val_split(1 / 3)
    assert not torch.isin(train.targets["original"], val.targets["original"]).any()
    assert_refused("no .mat file of the 'train' split", tmp_path / "affnist", "train")


def test_an_absent_set_says_where_to_get_it(tmp_path):
    assert_refused(
        "get it from https://www.cs.toronto.edu/~tijmen/affNIST/$",
        "affnist",
        root=tmp_path,
        cache_dir=tmp_path,
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image": np.zeros((784, COUNT), np.uint8)}, r"expected image \[1600, .n.\] of uint8"),
        ({"image": np.zeros((1600, COUNT))}, "of float64"),
        ({"label_int": np.zeros(0)}, "and n labels in label_int"),
    ],
)
def test_other_fields_are_refused(tmp_path, changes, words):
    with refusal(words):
        read_affnist(write(tmp_path / "1.mat", **changes))


def test_another_file(tmp_path):
    with refusal("expected image"):
        read_affnist(write_mat(tmp_path / "1.mat", {"x": np.eye(2)}))

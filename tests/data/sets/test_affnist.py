import numpy as np
import pytest
import torch

from torchcaps.data import load_dataset, read_affnist
from torchcaps.errors import DataError

from ..mat_files import mat_bytes

COUNT = 6
IMAGES = np.random.default_rng(0).integers(0, 256, (COUNT, 40, 40), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5, 9])


def struct(**changes):
    one_of_n = np.zeros((10, COUNT))
    one_of_n[LABELS, np.arange(COUNT)] = 1
    fields = {
        "affine_matrix": np.zeros((6, COUNT)),
        "image": IMAGES.reshape(COUNT, 1600).T.copy(),
        "label_int": LABELS[None].astype(np.uint8),
        "label_one_of_n": one_of_n,
        "original_id": np.arange(1.0, COUNT + 1)[None],
    }
    return {name: value for name, value in {**fields, **changes}.items() if value is not None}


def write(path, **changes):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(mat_bytes({"affNISTdata": struct(**changes)}))
    return path


def test_images_are_upright(tmp_path):
    found = read_affnist(write(tmp_path / "1.mat"))
    assert found.images.shape == (COUNT, 1, 40, 40)
    torch.testing.assert_close(found.images[:, 0], torch.from_numpy(IMAGES))
    assert found.labels.tolist() == LABELS.tolist()
    assert found.factors["original"].tolist() == [0, 1, 2, 3, 4, 5]
    assert found.group == "original"


def test_without_originals_there_is_no_group(tmp_path):
    found = read_affnist(write(tmp_path / "1.mat", original_id=None))
    assert (found.group, found.factors) == (None, {})


def test_files_of_a_split_in_natural_order(tmp_path):
    folder = tmp_path / "affnist" / "transformed" / "test_batches"
    for i in (10, 2, 1):
        write(folder / f"{i}.mat", image=np.full((1600, COUNT), i, np.uint8))
    write(folder.parent / "training_and_validation_batches" / "1.mat")
    found = load_dataset("affnist", "test", tmp_path, cache_dir=tmp_path / "none")
    assert found.images[::COUNT, 0, 0, 0].tolist() == [1, 2, 10]
    assert len(load_dataset(tmp_path / "affnist", "train")) == COUNT
    kept, held = found.train_val_split(1 / 3)
    assert not set(kept.factors["original"].tolist()) & set(held.factors["original"].tolist())


def test_where_to_get_it(tmp_path):
    with pytest.raises(
        DataError, match=r"get it from https://www.cs.toronto.edu/~tijmen/affNIST/$"
    ):
        load_dataset("affnist", root=tmp_path, cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"image": None}, "expected a struct affNISTdata with a field image"),
        (
            {"image": np.zeros((784, COUNT), np.uint8)},
            r"expected image \[1600, n\] of uint8, got \[784, 6\] of uint8",
        ),
        ({"image": np.zeros((1600, COUNT))}, "of float64"),
        ({"label_int": None}, "expected label_int for 6 images in affNISTdata"),
    ],
)
def test_other_fields_are_refused(tmp_path, changes, words):
    with pytest.raises(DataError, match=words):
        read_affnist(write(tmp_path / "1.mat", **changes))


def test_another_file(tmp_path):
    (tmp_path / "1.mat").write_bytes(mat_bytes({"x": np.eye(2)}))
    with pytest.raises(DataError, match="expected a struct affNISTdata"):
        read_affnist(tmp_path / "1.mat")

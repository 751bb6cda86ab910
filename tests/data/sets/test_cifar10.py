import numpy as np
import pytest

from torchcaps.data import load_dataset, read_cifar
from torchcaps.errors import DataError

from ..makers import assert_refused

NAMES = {
    "train": ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"],
    "test": ["test_batch"],
}


def write_batches(folder, skip=()):
    """Batches of four images; returns the (labels, pixels) of each by its name."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    batches = {}
    for name in [*NAMES["train"], *NAMES["test"]]:
        labels = random.integers(0, 10, 4).astype(np.uint8)
        pixels = random.integers(0, 256, (4, 3072), dtype=np.uint8)
        batches[name] = labels, pixels
        if name not in skip:
            records = np.hstack([labels[:, None], pixels])
            (folder / f"{name}.bin").write_bytes(records.tobytes())
    return batches


def test_batches_come_back(tmp_path):
    batches = write_batches(tmp_path)
    for split, names in NAMES.items():
        photographs = load_dataset(tmp_path, split)
        images = photographs.images.flatten(1).split(4)
        labels = photographs.labels.split(4)
        for k, name in enumerate(names):
            expected_labels, expected_pixels = batches[name]
            np.testing.assert_array_equal(images[k], expected_pixels)
            np.testing.assert_array_equal(labels[k], expected_labels)
        assert photographs.classes[9] == "truck"
        assert len(photographs) == 4 * len(names)


@pytest.mark.parametrize("place", ["", "cifar10", "cifar10/cifar-10-batches-bin"])
def test_the_named_set_is_found(tmp_path, place):
    write_batches(tmp_path / place)
    photographs = load_dataset("cifar10", "test", tmp_path, cache_dir=tmp_path / "none")
    assert (len(photographs), photographs.name) == (4, "cifar10")


def test_pickled_batches_are_not_read(tmp_path):
    (tmp_path / "test_batch").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(DataError, match="no test batch .*binary version"):
        read_cifar(tmp_path, "test")


def test_a_label_outside_the_classes(tmp_path):
    records = np.zeros((2, 3073), np.uint8)
    records[1, 0] = 11
    (tmp_path / "test_batch.bin").write_bytes(records.tobytes())
    with pytest.raises(DataError, match=r"test_batch\.bin: label 11 of image 1 lies outside"):
        read_cifar(tmp_path, "test")


def test_an_absent_batch_is_named(tmp_path):
    write_batches(tmp_path, skip=("data_batch_3", "test_batch"))
    assert_refused("a batch is missing between data_batch_1 and data_batch_5", tmp_path)
    assert_refused("no test batch", tmp_path, "test")

import numpy as np
import pytest

from torchcaps.data import load_dataset, read_cifar

from ..makers import assert_refused, refusal, write_cifar


def test_batches_come_back(tmp_path):
    batches = write_cifar(tmp_path)
    files = list(batches)
    for split, names in (("test", files[:1]), ("train", files[1:])):
        photographs = load_dataset(tmp_path, split)
        records = np.concatenate([batches[name] for name in names])
        np.testing.assert_array_equal(photographs.images.flatten(1), records[:, 1:])
        np.testing.assert_array_equal(photographs.labels, records[:, 0])
        assert photographs.classes[9] == "truck"


@pytest.mark.parametrize("place", ["", "cifar10", "cifar10/cifar-10-batches-bin"])
def test_the_named_set_is_found(tmp_path, place):
    write_cifar(tmp_path / place)
    photographs = load_dataset("cifar10", "test", tmp_path, cache_dir=tmp_path / "none")
    assert (len(photographs), photographs.name) == (4, "cifar10")


def test_pickled_batches_are_not_read(tmp_path):
    (tmp_path / "test_batch").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with refusal("no test batch .*binary version"):
        read_cifar(tmp_path, "test")


def test_a_label_outside_the_classes(tmp_path):
    records = np.zeros((2, 3073), np.uint8)
    records[1, 0] = 11
    (tmp_path / "test_batch.bin").write_bytes(records.tobytes())
    with refusal(r"test_batch\.bin: label 11 of image 1 lies outside"):
        read_cifar(tmp_path, "test")


def test_an_absent_batch_is_named(tmp_path):
    write_cifar(tmp_path, skip=("data_batch_3",))
    assert_refused("a batch is missing between data_batch_1 and data_batch_5", tmp_path)

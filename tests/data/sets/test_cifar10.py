import pickle

import numpy as np
import pytest

from torchcaps.data import load_dataset, read_cifar
from torchcaps.errors import DataError

NAMES = {
    "train": ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"],
    "test": ["test_batch"],
}


def old_pickle(batch):
    """As Python 2 wrote the published files: protocol 2, text as bytes, numpy's old names."""
    pickled = pickle.dumps(batch, protocol=2)
    return pickled.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def write_batches(folder, kind, skip=()):
    """Batches of four images; returns the (labels, pixels) of each by its name."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    batches = {}
    for name in [*NAMES["train"], *NAMES["test"]]:
        labels = random.integers(0, 10, 4).astype(np.uint8)
        pixels = random.integers(0, 256, (4, 3072), dtype=np.uint8)
        batches[name] = labels, pixels
        if name in skip:
            continue
        if kind == "bin":
            (folder / f"{name}.bin").write_bytes(np.hstack([labels[:, None], pixels]).tobytes())
        else:
            batch = {b"labels": labels.tolist(), b"data": pixels, b"filenames": [b"a.png"]}
            (folder / name).write_bytes(old_pickle(batch))
    return batches


@pytest.mark.parametrize("kind", ["bin", "py"])
def test_batches_come_back(tmp_path, kind):
    batches = write_batches(tmp_path, kind)
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


@pytest.mark.parametrize("kind", ["bin", "py"])
@pytest.mark.parametrize("place", ["", "cifar10", "cifar10/cifar-10-batches-{}"])
def test_the_named_set_is_found(tmp_path, kind, place):
    folder = tmp_path / place.format(kind)
    write_batches(folder, kind)
    photographs = load_dataset("cifar10", "test", tmp_path, cache_dir=tmp_path / "none")
    assert (len(photographs), photographs.name) == (4, "cifar10")
    assert len(load_dataset(tmp_path / place.partition("/")[0])) == 20


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_with_code_is_refused_unexecuted(tmp_path, protocol):
    batch = {b"labels": [0], b"data": Trap(str(tmp_path / "sprung"))}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch, protocol=protocol))
    refusal = r"test_batch: refused: the pickle asks for \w+\.open, which is no part of an array"
    with pytest.raises(DataError, match=refusal):
        read_cifar(tmp_path, "test")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("attack", "target"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", "os.system"),
        (b"cbuiltins\neval\n(S'1'\ntR.", "builtins.eval"),
        (b"c_codecs\ndecode\n.", "_codecs.decode"),
        (b"c_codecs\nencode\n(Vabc\nVrot13\ntR.", "the codec 'rot13'"),
    ],
)
def test_hand_written_pickles_are_refused(tmp_path, attack, target):
    (tmp_path / "test_batch").write_bytes(attack)
    with pytest.raises(DataError, match=f"refused: the pickle asks for {target}"):
        read_cifar(tmp_path, "test")


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({b"labels": [0]}, "truncated or damaged CIFAR-10 batch"),
        ([1, 2], "truncated or damaged CIFAR-10 batch"),
        (
            {b"labels": [0, 1], b"data": np.zeros((1, 3072), np.uint8)},
            r"got \[1, 3072\] of uint8 with 2 labels",
        ),
        ({b"labels": [0], b"data": np.zeros((1, 3072))}, r"got \[1, 3072\] of float64"),
        ({b"labels": [0], b"data": np.array([None])}, "refused: the pickle asks for the type 'O8'"),
        ({b"labels": [0.5], b"data": np.zeros((1, 3072), np.uint8)}, "with 1 labels of float64"),
        ({b"labels": [10], b"data": np.zeros((1, 3072), np.uint8)}, "label 10 of image 0 lies"),
    ],
)
def test_other_contents_are_refused(tmp_path, batch, message):
    path = tmp_path / "test_batch"
    path.write_bytes(old_pickle(batch))
    with pytest.raises(DataError, match=f"{path}: .*{message}"):
        read_cifar(tmp_path, "test")


@pytest.mark.parametrize("length", [0, 5000, 12_290])
@pytest.mark.parametrize("kind", ["bin", "py"])
def test_truncated_batches_are_refused(tmp_path, kind, length):
    write_batches(tmp_path, kind)
    path = tmp_path / ("test_batch.bin" if kind == "bin" else "test_batch")
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DataError, match=f"{path}: truncated or"):
        read_cifar(tmp_path, "test")


def test_a_label_outside_the_classes(tmp_path):
    records = np.zeros((2, 3073), np.uint8)
    records[1, 0] = 11
    (tmp_path / "test_batch.bin").write_bytes(records.tobytes())
    with pytest.raises(DataError, match=r"test_batch\.bin: label 11 of image 1 lies outside"):
        read_cifar(tmp_path, "test")


def test_an_absent_batch_is_named(tmp_path):
    write_batches(tmp_path, "bin", skip=("data_batch_3", "test_batch"))
    with pytest.raises(DataError, match="a batch is missing between data_batch_1 and data_batch_5"):
        load_dataset(tmp_path)
    with pytest.raises(DataError, match="no test batch"):
        load_dataset(tmp_path, "test")

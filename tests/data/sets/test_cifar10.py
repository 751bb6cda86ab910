import pickle

import numpy as np
import pytest

from torchcaps.data import load_dataset, read_cifar
from torchcaps.errors import DataError

NAMES = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}


def batch(seed, count=4):
    random = np.random.default_rng(seed)
    return random.integers(0, 10, count).astype(np.uint8), random.integers(
        0, 256, (count, 3072), dtype=np.uint8
    )


def old_pickle(value):
    """As Python 2 wrote the published files: protocol 2, text as bytes, numpy's old module names."""
    return pickle.dumps(value, protocol=2).replace(
        b"numpy._core.multiarray", b"numpy.core.multiarray"
    )


def write_batches(folder, kind, skip=()):
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for split, names in NAMES.items():
        for seed, name in enumerate(names, start=100 * (split == "test")):
            labels, pixels = written[name] = batch(seed)
            if name in skip:
                continue
            if kind == "bin":
                (folder / f"{name}.bin").write_bytes(np.hstack([labels[:, None], pixels]).tobytes())
            else:
                value = {
                    b"batch_label": b"x",
                    b"labels": labels.tolist(),
                    b"data": pixels,
                    b"filenames": [b"a.png"],
                }
                (folder / name).write_bytes(old_pickle(value))
    return written


@pytest.mark.parametrize("kind", ["bin", "py"])
def test_batches_come_back(tmp_path, kind):
    written = write_batches(tmp_path, kind)
    for split, names in NAMES.items():
        found = load_dataset(tmp_path, split)
        pixels = np.concatenate([written[name][1] for name in names]).reshape(-1, 3, 32, 32)
        assert np.array_equal(found.images.numpy(), pixels)
        assert (
            found.labels.tolist() == np.concatenate([written[name][0] for name in names]).tolist()
        )
        assert found.classes[9] == "truck"


@pytest.mark.parametrize("kind", ["bin", "py"])
@pytest.mark.parametrize(
    "place", ["", "cifar10", "cifar10/cifar-10-batches-{}", "cifar-10-batches-{}"]
)
def test_the_named_set_is_found(tmp_path, kind, place):
    write_batches(tmp_path / place.format(kind), kind)
    found = load_dataset("cifar10", "test", tmp_path, cache_dir=tmp_path / "none")
    assert (len(found), found.name) == (4, "cifar10")


def test_the_published_folder_inside_a_path(tmp_path):
    write_batches(tmp_path / "own" / "cifar-10-batches-py", "py")
    assert len(load_dataset(tmp_path / "own")) == 20


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_a_pickle_with_code_is_refused_unexecuted(tmp_path, protocol):
    value = {b"labels": [0], b"data": Trap(str(tmp_path / "sprung"))}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(value, protocol=protocol))
    with pytest.raises(
        DataError,
        match=r"test_batch: refused: the pickle asks for \w+\.open, which is no part of an",
    ):
        read_cifar(tmp_path, "test")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "attack",
    [b"cos\nsystem\n(S'true'\ntR.", b"cbuiltins\neval\n(S'1'\ntR.", b"c_codecs\ndecode\n."],
)
def test_hand_written_pickles(tmp_path, attack):
    (tmp_path / "test_batch").write_bytes(attack)
    with pytest.raises(DataError, match="refused: the pickle asks for"):
        read_cifar(tmp_path, "test")


def test_only_one_codec(tmp_path):
    (tmp_path / "test_batch").write_bytes(b"c_codecs\nencode\n(Vabc\nVrot13\ntR.")
    with pytest.raises(DataError, match="refused: the pickle asks for the codec 'rot13'"):
        read_cifar(tmp_path, "test")


@pytest.mark.parametrize(
    ("value", "message"),
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
        (
            {b"labels": [10], b"data": np.zeros((1, 3072), np.uint8)},
            "label 10 of image 0 lies outside the 10 classes",
        ),
    ],
)
def test_wrong_contents(tmp_path, value, message):
    (tmp_path / "test_batch").write_bytes(old_pickle(value))
    with pytest.raises(DataError, match=f"{tmp_path / 'test_batch'}: .*{message}"):
        read_cifar(tmp_path, "test")


@pytest.mark.parametrize("kept", [0, 1, 5000, 12_290])
@pytest.mark.parametrize("kind", ["bin", "py"])
def test_truncated_batches(tmp_path, kind, kept):
    write_batches(tmp_path, kind)
    path = tmp_path / ("test_batch.bin" if kind == "bin" else "test_batch")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match=f"{path}: truncated or"):
        read_cifar(tmp_path, "test")


def test_a_label_outside(tmp_path):
    write_batches(tmp_path, "bin")
    data = bytearray((tmp_path / "test_batch.bin").read_bytes())
    data[3073] = 11
    (tmp_path / "test_batch.bin").write_bytes(data)
    with pytest.raises(
        DataError, match=r"test_batch\.bin: label 11 of image 1 lies outside the 10 classes"
    ):
        read_cifar(tmp_path, "test")


def test_a_gap_and_nothing(tmp_path):
    write_batches(tmp_path, "bin", skip=("data_batch_3", "test_batch"))
    with pytest.raises(DataError, match="a batch is missing between data_batch_1 and data_batch_5"):
        load_dataset(tmp_path)
    with pytest.raises(DataError, match="no test batch"):
        load_dataset(tmp_path, "test")

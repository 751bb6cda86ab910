"""Shards in webdataset's layout, and other plain archives that stay on disk."""

import io
import json

import pytest
import torch

from torchcaps.data import DiskDataset, load_dataset

from .makers import assert_refused, both_splits, pack, picture, refusal, tar_bytes, write_folder


def encoded(index):
    stream = io.BytesIO()
    picture((12, 10), seed=index).save(stream, "JPEG")
    return stream.getvalue()


def write_shard(path, members):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tar_bytes(members))


def samples(indices, label_ending="cls"):
    """Images of the classes 2 and 10 with their labels."""
    members = {}
    for index in indices:
        label = ("10", "2")[index % 2]
        members[f"./part/{index:04}.jpg"] = encoded(index)
        text = json.dumps({"label": int(label)}) if label_ending == "json" else f"{label}\n"
        members[f"./part/{index:04}.{label_ending}"] = text.encode()
    return members


@pytest.fixture
def shards(tmp_path):
    """A folder of three shards with 12 images."""
    root = tmp_path / "own"
    for number in range(3):
        ending = "json" if number == 2 else "cls"
        write_shard(
            root / f"shard-{number}.tar", samples(range(4 * number, 4 * number + 4), ending)
        )
    return root


@pytest.fixture
def twin(tmp_path):
    """The same images and classes as files in folders."""
    root = tmp_path / "twin"
    for index in range(12):
        folder = root / ("10", "2")[index % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{index:04}.jpg").write_bytes(encoded(index))
    return root


@pytest.mark.parametrize("split", ["train", "test"])
def test_shards_read_as_the_folder_of_their_images(shards, twin, split):
    expected = load_dataset(twin, split, img_size=8)
    assert expected.classes == ("2", "10")
    for storage in ("memory", "disk"):
        images = load_dataset(shards, split, img_size=8, storage=storage, workers=0)
        assert isinstance(images, DiskDataset) is (storage == "disk")
        assert (images.classes, images.name) == (expected.classes, "own")
        assert torch.equal(images.labels, expected.labels)
        assert torch.equal(images.float_images(), expected.float_images())


def test_folders_of_shards_are_the_splits(tmp_path):
    for split, indices in (("train", range(5)), ("test", range(5, 8))):
        write_shard(tmp_path / "own" / split / "a.tar", samples(indices))
    assert len(load_dataset(tmp_path / "own", "train")) == 5
    assert len(load_dataset(tmp_path / "own", "test")) == 3


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_images_of_one_group_stay_on_one_side(shards, storage):
    options = {"group_pattern": r"part/(\d+)\d\.jpg$", "storage": storage, "img_size": 8}
    splits = both_splits(shards, **options)
    groups = [set(images.targets["object"].tolist()) for images in splits]
    assert [len(images) for images in splits] == [10, 2]  # 0000 to 0009, 0010 and 0011
    assert not groups[0] & groups[1]


def test_a_single_shard_is_a_set(shards):
    shard = shards / "shard-1.tar"
    assert len(load_dataset(shard)) + len(load_dataset(shard, "test")) == 4


def test_batches_of_shards_are_the_same_with_workers(shards):
    images = load_dataset(shards, img_size=8, storage="disk", workers=2)
    expected = images.float_images()
    batches = [torch.tensor([index, (5 * index + 3) % 8]) for index in range(8)]
    for indices, batch in zip(batches, images.batches(batches, images.targets), strict=True):
        assert torch.equal(batch.inputs, expected[indices])


@pytest.mark.parametrize("storage", ["memory", "auto", "disk"])
def test_a_plain_archive_of_class_folders_reads_as_its_folder(tmp_path, storage):
    root = write_folder(tmp_path / "own")
    images = load_dataset(pack(root, tmp_path / "own.tar"), storage=storage)
    assert isinstance(images, DiskDataset) is (storage == "disk")
    assert torch.equal(images.float_images(), load_dataset(root).float_images())


def test_a_compressed_archive_cannot_stay_on_disk(tmp_path):
    path = pack(write_folder(tmp_path / "own"), tmp_path / "own.tar.gz")
    assert len(load_dataset(path, storage="auto")) == 8
    assert_refused(r"own\.tar\.gz: cannot stay on disk", path, storage="disk")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"b.jpg": encoded(0)}, r"a\.tar:b: expected its label in b\.cls or b\.json"),
        ({"b.jpg": encoded(0), "b.cls": b" "}, r"a\.tar:b\.cls: expected a label"),
        ({"b.jpg": encoded(0), "b.json": b"{}"}, "or a JSON object with one of label"),
        ({"b.jpg": encoded(0), "b.cls": b"x" * 70_000}, "of at most 65,536 bytes"),
        ({"b.jpg": b"junk", "b.cls": b"10"}, r"a\.tar:b\.jpg@\d+\+4: not an image"),
    ],
)
def test_a_faulty_sample_is_named(tmp_path, members, message):
    write_shard(tmp_path / "own" / "a.tar", samples(range(6)) | members)
    with refusal(message):
        load_dataset(tmp_path / "own", "train")
        load_dataset(tmp_path / "own", "test")


def test_an_archive_that_became_shorter_or_vanished_is_named(shards):
    images = load_dataset(shards, img_size=8, storage="disk", workers=0)
    shard = shards / "shard-1.tar"
    shard.write_bytes(shard.read_bytes()[:2000])
    with refusal(r"shard-1\.tar:.* truncated archive"):
        images.float_images()
    shard.unlink()
    with refusal(r"shard-1\.tar: cannot be read \(No such file"):
        images.float_images()

"""Images that stay in their files: the same values as in memory, decoded when they are needed."""

import os
import shutil
import signal

import pytest
import torch

from torchcaps.data import DiskDataset, entries, files, load_dataset

from .makers import assert_refused, picture, refusal

SIZES = [(40, 30), (17, 23), (60, 64)]


@pytest.fixture
def folder(tmp_path):
    """18 pictures of three sizes: JPEG in color and gray, and PNG."""
    root = tmp_path / "own"
    for label in ("cat", "dog"):
        (root / label).mkdir(parents=True)
        for index in range(9):
            image = picture(SIZES[index % 3], color=index % 2 == 0, seed=index)
            ending = "png" if index % 4 == 3 else "jpg"
            image.save(root / label / f"{index}.{ending}")
    return root


def on_disk(path, **options):
    images = load_dataset(path, **{"img_size": 8, "storage": "disk", "workers": 0} | options)
    assert isinstance(images, DiskDataset)
    return images


def streamed(images, batches, **options):
    """Float images and labels of batches."""
    parts = []
    index_batches = [torch.tensor(part) for part in batches]
    for batch in images.batches(index_batches, images.targets, **options):
        parts.append((batch.inputs, batch.targets["label"].tolist()))
    return parts


@pytest.mark.parametrize("options", [{}, {"in_chans": 1}, {"split": "test"}, {"img_size": (9, 7)}])
def test_pixels_labels_and_sizes_are_those_of_the_same_set_in_memory(folder, options):
    images = on_disk(folder, **options)
    expected = load_dataset(folder, **{"img_size": 8} | options)
    assert torch.equal(images.float_images(), expected.float_images())
    assert torch.equal(images.labels, expected.labels)
    assert (images.classes, images.img_size, images.in_chans, len(images)) == (
        expected.classes,
        expected.img_size,
        expected.in_chans,
        len(expected),
    )


def test_splits_subsets_and_crops_are_those_of_the_same_set_in_memory(folder):
    images = on_disk(folder)
    expected = load_dataset(folder, img_size=8)
    pairs = zip(images.train_val_split(0.4, 1), expected.train_val_split(0.4, 1), strict=True)
    for part, expected_part in pairs:
        part = part.cropped(5).subset([2, 0])
        expected_part = expected_part.cropped(5).subset([2, 0])
        assert part.img_size == (5, 5)
        assert torch.equal(part.float_images([1]), expected_part.float_images([1]))
        assert torch.equal(part.float_images(), expected_part.float_images())
        assert torch.equal(part.labels, expected_part.labels)


def test_nothing_is_decoded_before_it_is_needed(folder):
    images = on_disk(folder, in_chans=3)
    for file in folder.glob("*/*"):
        file.write_bytes(b"damaged")
    part = images.train_val_split(0.4)[0].cropped(5).resized(None, 1).subset([0])
    with refusal("not an image, or a damaged one"):
        part.float_images()


def test_images_of_several_sizes_need_a_size(folder):
    images = on_disk(folder, img_size=None)
    with refusal(r"1\.jpg: expected an image of 40 × 30 .* got 17 × 23"):
        images.float_images()
    assert images.resized(8, None).float_images().shape == (14, 3, 8, 8)


def test_a_cropped_set_is_not_resized_and_a_crop_must_fit(folder):
    images = on_disk(folder)
    with refusal("before the crop"):
        images.cropped(4).resized(6, None)
    with refusal("crop", ValueError):
        images.cropped(9)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_are_the_same_with_any_number_of_workers(folder, workers):
    images = on_disk(folder, workers=workers)
    expected = load_dataset(folder, img_size=8)
    batches = [[3, 1, 2], [5], [0, 0, 4, 13]]
    state = torch.random.get_rng_state()
    for indices, (pixels, labels) in zip(batches, streamed(images, batches), strict=True):
        assert torch.equal(pixels, expected.float_images(indices))
        assert labels == expected.labels[indices].tolist()
    assert torch.equal(torch.random.get_rng_state(), state)


def test_only_the_needed_images_of_a_batch_are_decoded(folder):
    images = on_disk(folder)
    ((pixels, labels),) = streamed(images, [[3, 1, 2]], shard=lambda size: slice(1, size - 1))
    assert torch.equal(pixels[1], images.float_images([1])[0])
    assert pixels[[0, 2]].count_nonzero() == 0
    assert labels == images.labels[[3, 1, 2]].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_a_worker_is_one_sentence_that_names_the_file(folder, workers):
    images = on_disk(folder, workers=workers)
    damaged = folder / "dog" / "5.jpg"
    damaged.write_bytes(damaged.read_bytes()[:200])
    with refusal(f"^{damaged}: "):
        streamed(images, [[index] for index in range(len(images))])


def test_a_worker_that_is_killed_is_an_error_with_a_remedy(folder, monkeypatch):
    images = on_disk(folder, workers=2)
    main = os.getpid()

    def kill(_file):
        assert os.getpid() != main
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(files, "decode_image", lambda *_, **__: kill(_))
    with refusal("own: a process that decodes images was ended .*--workers"):
        streamed(images, [[0], [1], [2]])


def test_large_sets_stay_on_disk_by_default(folder, monkeypatch):
    assert not isinstance(load_dataset(folder, img_size=8, storage="auto"), DiskDataset)
    decoded = 14 * 3 * 8 * 8
    assert isinstance(
        load_dataset(folder, img_size=8, storage="auto", max_bytes=decoded - 1), DiskDataset
    )
    monkeypatch.setattr(entries, "MAX_DECODED_BYTES", decoded)
    assert not isinstance(load_dataset(folder, img_size=8, storage="auto"), DiskDataset)
    monkeypatch.setattr(entries, "MAX_DECODED_BYTES", decoded - 1)
    images = load_dataset(folder, img_size=8, storage="auto")
    assert isinstance(images, DiskDataset)
    assert "own: 14 images stay on disk" in images.notes[-1]


def test_a_small_machine_keeps_less_in_memory(monkeypatch):
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.get)
    assert entries._default_memory() == 1_024_000


def test_what_is_no_image_files_cannot_stay_on_disk(tmp_path):
    assert_refused("digits: cannot stay on disk", "digits", storage="disk")


def test_a_fingerprint_tells_files_apart_without_decoding_them(folder, tmp_path):
    def fingerprint():
        return on_disk(folder, in_chans=3).images.fingerprint().tolist()

    original = fingerprint()
    assert fingerprint() == original

    file = folder / "cat" / "4.jpg"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"\0")  # same size
    assert fingerprint() != original
    file.write_bytes(content)
    assert fingerprint() == original
    file.rename(folder / "cat" / "04.jpg")
    assert fingerprint() != original
    (folder / "cat" / "04.jpg").rename(file)

    moved = tmp_path / "elsewhere" / "own"
    shutil.copytree(folder, moved)
    assert on_disk(moved, in_chans=3).images.fingerprint().tolist() == original


def test_the_size_of_every_file_is_in_a_fingerprint(folder, monkeypatch):
    monkeypatch.setattr(files, "SAMPLED_FILES", 2)  # the first and the last file
    images = on_disk(folder, in_chans=3).images
    before = images.fingerprint()
    with open(os.fsdecode(images.files[3]), "ab") as file:
        file.write(b"more")
    assert not torch.equal(images.fingerprint(), before)


def test_sets_are_told_apart_by_their_files(folder):
    images = on_disk(folder)
    order = torch.arange(len(images)).flip(0)
    tensors = files.identities(images)
    others = files.identities(images.subset(order))
    assert tensors["label"].tolist() == images.labels.tolist()
    assert not torch.equal(tensors["inputs"], others["inputs"])
    in_memory = load_dataset(folder, img_size=8)
    assert torch.equal(files.identities(in_memory)["inputs"], in_memory.images)

"""Image files as people have them: what is taken, what is left out and why, groups and splits."""

import os
import socket

import numpy as np
import pytest
import torch

from torchcaps.data import Dataset, load_dataset, match_classes
from torchcaps.errors import ArgumentError, DamagedImageError, MissingSplitError

from .makers import (
    SETS,
    SIGN_PATTERN,
    assert_refused,
    both_splits,
    pack,
    picture,
    refusal,
    write_folder,
    write_medmnist,
    write_sign_folder,
)


def tracks(images):
    return set(images.targets["object"].tolist())


def test_the_folder_of_signs_without_its_damaged_files(tmp_path):
    root = tmp_path / "signs"
    damaged = write_sign_folder(root, classes=14)
    options = {"img_size": 16, "group_pattern": SIGN_PATTERN, "skip_damaged": True}
    train, test = both_splits(root, **options)
    num_files = sum(file.is_file() for file in root.rglob("*")) - 1  # the notes
    assert len(train) + len(test) == num_files - len(damaged)
    assert train.classes == test.classes == tuple(f"{label:02d} sign" for label in range(14))
    assert torch.equal(train.groups, train.targets["object"])
    assert not tracks(train) & tracks(test)
    assert set(test.labels.tolist()) == set(range(14))

    rest, val = train.train_val_split(0.3)
    assert not tracks(rest) & tracks(val)
    assert tracks(rest) | tracks(val) == tracks(train)

    notes = "\n".join(train.notes)
    assert f"signs: {num_files} images of 14 classes, " in notes
    assert "groups by 'object'" in notes
    assert "1 non-image file (00 sign/notes.txt), 1 broken link (01 sign/gone.png)" in notes
    assert "cannot be read" in notes


def test_images_are_known_by_their_content_where_they_have_no_ending(tmp_path):
    root = write_folder(tmp_path / "own", count=2)
    for index, file_format in enumerate(("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")):
        picture(seed=index).save(root / "dog" / f"plain{index}", format=file_format)
    (root / "dog" / "README").write_text("P is for picture, BM for nothing")
    (root / "dog" / "empty").touch()
    train = load_dataset(root)
    assert len(train) + len(load_dataset(root, "test")) == 11
    assert any("2 non-image files (dog/README, dog/empty)" in note for note in train.notes)
    archived = load_dataset(pack(root, tmp_path / "own.tar"))
    assert torch.equal(train.images, archived.images)
    assert any("2 non-image files" in note for note in archived.notes)


def test_pipes_sockets_and_broken_links_are_left_out_and_said(tmp_path, monkeypatch):
    root = write_folder(tmp_path / "own")
    os.mkfifo(root / "cat" / "pipe.png")
    monkeypatch.chdir(root / "cat")  # the path of a socket is short
    server = socket.socket(socket.AF_UNIX)
    server.bind("socket.png")
    server.close()
    for index in range(5):
        (root / "dog" / f"{index} gone.png").symlink_to(root / "nowhere")
    images = load_dataset(root)
    assert len(images) == 8
    expected = (
        "own: left out 2 special files (cat/pipe.png, cat/socket.png), 5 broken links "
        "(dog/0 gone.png, dog/1 gone.png, dog/2 gone.png and 2 more)"
    )
    assert expected in images.notes


def test_what_lies_beside_classes_and_splits_is_said(tmp_path):
    root = write_folder(tmp_path / "own", levels=("train", "test"))
    picture().save(root / "train" / "cover.png")
    write_folder(root / "more", count=1)
    notes = "\n".join(load_dataset(root).notes)
    assert "1 unlabeled image (train/cover.png)" in notes
    assert "2 unused files (more/cat/0.png, more/dog/0.png)" in notes


def test_a_link_to_a_folder_above_is_named(tmp_path):
    root = write_folder(tmp_path / "own")
    (root / "cat" / "again").symlink_to(root)
    assert_refused("cat/again: a link to a folder above it", root)


@pytest.mark.parametrize("validation", ["val", "valid", "Validation"])
def test_the_official_validation_split_of_folders(tmp_path, validation):
    root = write_folder(tmp_path / "own", count=3, levels=("train", "test"))
    write_folder(root, count=2, levels=(validation,))
    val = load_dataset(root, "val")
    assert len(val) == 4
    assert torch.equal(val.images[0], torch.from_numpy(np.array(picture())).movedim(-1, 0))
    assert len(load_dataset(root)) == len(load_dataset(root, "test")) == 6


def test_validation_beside_training_alone_is_the_test_split(tmp_path):
    root = write_folder(tmp_path / "own", count=3, levels=("train", "val"))
    assert len(load_dataset(root, "test")) == 6
    with refusal("own: no image of the 'val' split", MissingSplitError):
        load_dataset(root, "val")


def test_the_layout_of_medmnist(tmp_path):
    arrays = write_medmnist(tmp_path / "own.npz")
    for split in ("train", "val", "test"):
        images = load_dataset(tmp_path / "own.npz", split)
        assert np.array_equal(images.images[:, 0].numpy(), arrays[f"{split}_images"])
        assert images.labels.tolist() == arrays[f"{split}_labels"].flatten().tolist()


@pytest.mark.parametrize("kind", [None, "folder", "npz", "csv", "tar"])
def test_other_sets_have_no_official_validation_split(tmp_path, kind):
    source = SETS[kind](tmp_path) if kind else "digits"
    with refusal("'val' split", MissingSplitError):
        load_dataset(source, "val")


def write_rows(folder, header, rows, count=12):
    for index in range(count):
        picture(seed=index).save(folder / f"{index}.png")
    (folder / "own.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder / "own.csv"


def test_the_columns_of_labels_and_groups(tmp_path):
    rows = [f"{i}.png,{'ab'[i % 2]},{'xyz'[i % 3]},patient {i // 3}" for i in range(12)]
    path = write_rows(tmp_path, "image,side,organ,patient", rows)
    options = {"label_column": "organ", "group_column": "patient"}
    train, test = both_splits(path, **options)
    assert train.classes == ("x", "y", "z")
    assert torch.equal(train.groups, train.targets["patient"])
    groups = [set(images.targets["patient"].tolist()) for images in (train, test)]
    assert not groups[0] & groups[1]
    assert len(groups[0] | groups[1]) == 4
    assert len(train) + len(test) == 12
    rest, val = train.train_val_split(3)
    assert not set(rest.groups.tolist()) & set(val.groups.tolist())


TAGS = ["cat | dog", "dog", "owl|cat|dog", "dog|", "owl", "cat"]


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_any_number_of_labels_in_a_column(tmp_path, storage):
    rows = [f"{i}.png,{TAGS[i % 6]}" for i in range(12)]
    path = write_rows(tmp_path, "image,tags", rows)
    options = {"label_column": "tags", "label_separator": "|", "storage": storage}
    train, test = both_splits(path, **options)
    assert train.classes == ("cat", "dog", "owl")
    rows = train.labels.tolist() + test.labels.tolist()
    expected = [[1, 1, 0], [0, 1, 0], [1, 1, 1], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
    assert sorted(rows) == sorted(2 * expected)

    matched = match_classes(train, ("bat", "cat", "dog", "owl"))
    assert torch.equal(matched.labels[:, 1:], train.labels)
    assert not matched.labels[:, 0].any()


def test_several_columns_of_labels_of_which_one_may_be_empty(tmp_path):
    rows = [f"{i}.png,{'ab'[i % 2]},{'c' * (i % 3 == 0)}" for i in range(12)]
    images = load_dataset(
        write_rows(tmp_path, "file,first,second", rows), label_column="first,second"
    )
    assert images.classes == ("a", "b", "c")
    assert images.train_val_split(0.25)[1].labels.shape[1] == 3
    rows = {tuple(row) for row in images.labels.tolist()}
    assert rows <= {(1, 0, 0), (0, 1, 0), (1, 0, 1), (0, 1, 1)}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([[-1, 0], [0, 1]], "expected labels of 0 and 1"),
        ([[1, 1], [0, 0]], "one or more classes for each image, got none for 1 of them"),
    ],
)
def test_unsuitable_rows_of_labels_are_refused(labels, message):
    pixels = torch.zeros(2, 1, 2, 2, dtype=torch.uint8)
    with refusal(message):
        Dataset(pixels, {"labels": torch.tensor(labels)}, ("a", "b"), "own")


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (["0.png,|"], {"label_separator": "|"}, "line 2: expected a label, or different ones"),
        (["0.png,a;a"], {"label_separator": ";"}, "line 2: expected a label, or different ones"),
        (["0.png,a"], {"label_column": "kind"}, "no column 'kind'; .* label_column"),
        (["0.png,a"], {"group_column": "who"}, "no column 'who'; .* group_column"),
    ],
)
def test_unsuitable_columns_are_refused(tmp_path, rows, options, message):
    path = write_rows(tmp_path, "file,label", rows, count=1)
    assert_refused(message, path, **options)


def test_missing_files_of_a_table_are_all_named_or_left_out(tmp_path):
    rows = [f"{i}.png,{'ab'[i % 2]}" for i in range(15)]
    path = write_rows(tmp_path, "file,label", rows)
    assert_refused(r"3 of 15 .*line 14.*12\.png; .*13\.png; .*14\.png", path)
    images = load_dataset(path, skip_damaged=True)
    assert len(images) + len(load_dataset(path, "test", skip_damaged=True)) == 12
    assert any("left out 3 of 15 images that cannot be read" in note for note in images.notes)


@pytest.mark.parametrize("as_archive", [False, True])
def test_damaged_files_of_both_splits_are_named_at_once_or_left_out(tmp_path, as_archive):
    path = write_folder(tmp_path / "own", levels=("train", "test"))
    for name in ("train/cat/0.png", "test/dog/4.png"):
        file = path / name
        file.write_bytes(file.read_bytes()[:50])
    if as_archive:
        path = pack(path, tmp_path / "a.tar.gz")
    with refusal(r"2 of 20 .*train/cat/0.png.*test/dog/4.png", DamagedImageError):
        load_dataset(path)
    for split in ("train", "test"):
        images = load_dataset(path, split, skip_damaged=True)
        assert images.labels.bincount().tolist() == ([4, 5] if split == "train" else [5, 4])


def test_of_many_damaged_files_twenty_are_named(tmp_path):
    root = write_folder(tmp_path / "own", count=25)
    for file in (root / "cat").iterdir():
        file.write_bytes(b"junk")
    with pytest.raises(DamagedImageError, match="25 of 50 .*; and 5 more") as caught:
        load_dataset(root)
    message = str(caught.value)
    assert message.count("not an image") == 20
    assert "--skip-damaged" in message
    assert "\n" not in message


def test_images_on_disk_leave_out_damaged_ones(tmp_path):
    root = write_folder(tmp_path / "own")
    file = root / "cat" / "0.png"
    file.write_bytes(file.read_bytes()[:50])
    splits = both_splits(root, storage="disk", skip_damaged=True)
    assert sum(map(len, splits)) == 9
    assert sum(len(images.float_images()) for images in splits) == 9


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", r"group_pattern: expected a regular expression .*, got '\(' \(missing \)"),
        ("cat", "a regular expression with a group in parentheses, got 'cat'"),
        (r"cat/(\d)", r"expected 'cat/.*' to match every path, got 'dog/0.png'"),
    ],
)
def test_an_unsuitable_pattern_is_refused(tmp_path, pattern, message):
    root = write_folder(tmp_path / "own")
    with refusal(message, ArgumentError):
        load_dataset(root, group_pattern=pattern)


@pytest.mark.parametrize(
    ("data", "option"),
    [("digits", "skip_damaged"), ("own", "label_column"), ("own.npz", "group_pattern")],
)
def test_an_option_without_a_meaning_is_refused(tmp_path, monkeypatch, data, option):
    monkeypatch.chdir(tmp_path)
    write_folder(tmp_path / "own")
    write_medmnist(tmp_path / "own.npz")
    with refusal(f"^{option}: expected .*csv.*, got ", ArgumentError):
        load_dataset(data, **{option: "(x)"})
    with refusal("unknown option 'skip'; did you mean 'skip_damaged'", ArgumentError):
        load_dataset(data, skip=True)

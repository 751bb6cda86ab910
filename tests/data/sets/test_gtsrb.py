import pytest
import torch
from torch.testing import assert_close

from torchcaps.data import load_dataset

from ..makers import (
    COLUMNS,
    IMAGES,
    assert_refused,
    both_splits,
    class_members,
    make_row,
    write_gtsrb,
)


@pytest.fixture
def root(tmp_path):
    return write_gtsrb(tmp_path)


def test_every_image_has_its_class_track_and_frame(root):
    signs = load_dataset(root)
    assert (len(signs), signs.num_classes) == (40, 43)
    assert torch.equal(signs.groups, signs.targets["object"])
    assert signs.labels.tolist() == [0] * 20 + [3] * 20
    assert signs.targets["frame"].tolist() == [0, 1, 2, 3] * 10
    assert_close(signs.images[:, 0, 0, 0].long(), 20 + signs.targets["track"])
    assert_close(signs.images[:, 1, 9, 9].long(), 10 * signs.targets["frame"])
    assert_close(signs.images[:, 2, 31, 31].long(), signs.labels)


def test_the_test_split_has_no_tracks(root):
    signs = load_dataset(root, "test")
    assert signs.labels.tolist() == [0, 3, 0]
    assert (signs.groups, signs.targets["track"].tolist()) == (None, [-1] * 3)


def test_without_a_test_table_whole_tracks_are_held_out(tmp_path):
    root = write_gtsrb(tmp_path, num_test=0)
    train, test = both_splits(root)
    assert (len(train), len(test)) == (32, 8)
    assert not class_members(train, "track") & class_members(test, "track")


@pytest.mark.parametrize("images", ["Training", "Train", ""])
def test_other_places_of_the_class_folders(tmp_path, images):
    write_gtsrb(tmp_path / "GTSRB", images=images, num_test=0)
    assert len(load_dataset("gtsrb", "train", tmp_path, cache_dir=tmp_path / "none")) == 32


def test_by_path_in_another_size_and_gray(root):
    signs = load_dataset(root, "test", img_size=(20, 24), in_chans=1)
    assert signs.images.shape == (3, 1, 20, 24)


def write_table(root, *rows, columns=COLUMNS):
    (root / IMAGES / "00000/GT-00000.csv").write_text(columns + "".join(rows))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("", "no image in this table"),
        (
            make_row("00000_00000.ppm", 43),
            "line 2: expected .* a ClassId from 0 to 42, got .* '43'",
        ),
        (make_row("no.ppm", 0), r"line 2: expected a file that is there .* got .*/no\.ppm"),
    ],
)
def test_damaged_tables(root, row, words):
    write_table(root, row)
    assert_refused(words, root)


def test_an_absent_column(root):
    write_table(root, "a.ppm\n", columns="Filename,ClassId\n")
    assert_refused("GT-00000.csv: cannot be read as a table", root)

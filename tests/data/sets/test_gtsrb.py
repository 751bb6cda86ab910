import numpy as np
import pytest
import torch

from torchcaps.data import load_dataset, read_gtsrb
from torchcaps.errors import DataError

from ..makers import COLUMNS, IMAGES, make_row, ppm, write_gtsrb

SIGN = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)


@pytest.fixture
def root(tmp_path):
    return write_gtsrb(tmp_path)


def test_every_image_has_its_class_track_and_frame(root):
    signs = read_gtsrb(root)
    assert (len(signs), signs.num_classes) == (40, 43)
    assert torch.equal(signs.groups, signs.targets["object"])
    assert signs.labels.tolist() == [0] * 20 + [3] * 20
    assert signs.targets["frame"].tolist() == [0, 1, 2, 3] * 10
    torch.testing.assert_close(signs.images[:, 0, 0, 0].long(), 20 + signs.targets["track"])
    torch.testing.assert_close(signs.images[:, 1, 9, 9].long(), 10 * signs.targets["frame"])
    torch.testing.assert_close(signs.images[:, 2, 31, 31].long(), signs.labels)


def test_the_test_split_has_no_tracks(root):
    signs = read_gtsrb(root, "test")
    assert signs.labels.tolist() == [0, 3, 0]
    assert (signs.groups, signs.targets["track"].tolist()) == (None, [-1] * 3)


def class_tracks(signs):
    return set(zip(signs.labels.tolist(), signs.targets["track"].tolist(), strict=True))


def test_without_a_test_table_whole_tracks_are_held_out(tmp_path):
    root = write_gtsrb(tmp_path, num_test=0)
    train = read_gtsrb(root)
    test = read_gtsrb(root, "test")
    assert (len(train), len(test)) == (32, 8)
    assert not class_tracks(train) & class_tracks(test)


def test_the_box_is_scaled_to_the_image_and_cut_to_its_last_pixel(root):
    # 5/50, 6/60, 45/50, 54/60 of 32 pixels are 3.2, 3.2, 28.8, 28.8.
    (root / IMAGES / "00000/00000_00000.ppm").write_bytes(ppm(SIGN))
    photograph = read_gtsrb(root).images[0]
    sign = read_gtsrb(root, roi=True, img_size=26).images[0]
    np.testing.assert_array_equal(photograph.movedim(0, -1), SIGN)
    np.testing.assert_array_equal(sign.movedim(0, -1), SIGN[3:29, 3:29])


@pytest.mark.parametrize("box", [(0, 0, 1, 1, 200, 200), (199, 199, 200, 200, 200, 200)])
def test_every_box_leaves_a_pixel(tmp_path, box):
    root = write_gtsrb(tmp_path, labels=(0,), tracks=2, frames=1, num_test=0)
    write_table(root, make_row("00000_00000.ppm", 0, box), make_row("00001_00000.ppm", 0, box))
    assert read_gtsrb(root, roi=True, img_size=8).images.shape == (1, 3, 8, 8)


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
        (make_row("00000_00000.ppm", 43), "line 2: expected a ClassId from 0 to 42, got 43"),
        ("00000_00000.ppm;32\n", "line 2: expected whole numbers"),
        (make_row("no.ppm", 0), "line 2: no such file"),
        (make_row("a.ppm", 0, (0, 0, 33, 9, 32, 32)), "the box 0, 0 to 33, 9 does not lie"),
    ],
)
def test_damaged_tables(root, row, words):
    write_table(root, row)
    with pytest.raises(DataError, match=words):
        read_gtsrb(root)


def test_an_absent_column(root):
    write_table(root, columns="Filename,ClassId\n")
    with pytest.raises(DataError, match="no column 'Filename'; expected Filename;Width"):
        read_gtsrb(root)


def test_no_such_folder(tmp_path):
    with pytest.raises(DataError, match="no Final_Training/Images/00000/GT-00000.csv"):
        read_gtsrb(tmp_path)

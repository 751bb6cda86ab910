import numpy as np
import pytest
import torch

from torchcaps.data import load_dataset, read_gtsrb
from torchcaps.errors import DataError

COLUMNS = "Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId\n"
BOX = (
    5,
    6,
    45,
    54,
    50,
    60,
)  # left, top, right, bottom, width, height, in the pixels of the original


def ppm(pixels, comment=b"CREATOR: test "):
    height, width, _ = pixels.shape
    return b"P6\n#%s\n%d %d\n255\n" % (comment, width, height) + pixels.tobytes()


def pixels_of(track, frame, label):
    """32 × 32 with a mark that says which image it is: red of the track, green of the frame, blue of the class."""
    picture = np.zeros((32, 32, 3), np.uint8)
    picture[:] = (20 + track, 10 * frame, label)
    return picture


def row(name, label, box=BOX):
    left, top, right, bottom, width, height = box
    return f"{name};{width};{height};{left};{top};{right};{bottom};{label}\n"


def write_gtsrb(root, labels=(0, 3), tracks=5, frames=4, test=3, images="Final_Training/Images"):
    for label in labels:
        folder = root / images / f"{label:05d}"
        folder.mkdir(parents=True)
        table = COLUMNS
        for track in range(tracks):
            for frame in range(frames):
                name = f"{track:05d}_{frame:05d}.ppm"
                (folder / name).write_bytes(ppm(pixels_of(track, frame, label)))
                table += row(name, label)
        (folder / f"GT-{label:05d}.csv").write_text(table)
    if test:
        folder = root / "Final_Test" / "Images"
        folder.mkdir(parents=True)
        for i in range(test):
            (folder / f"{i:05d}.ppm").write_bytes(ppm(pixels_of(0, i, labels[i % len(labels)])))
        rows = [row(f"{i:05d}.ppm", labels[i % len(labels)]) for i in range(test)]
        (folder / "GT-final_test.csv").write_text(COLUMNS + "".join(rows))
    return root


def test_a_header_of_41_bytes_with_a_comment(tmp_path):
    root, picture = (
        write_gtsrb(tmp_path),
        np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8),
    )
    comment = b"CREATOR: OpenCV converter "
    data = ppm(picture, comment)
    assert (data[:3], len(data)) == (b"P6\n", 41 + 3072)
    (root / "Final_Training/Images/00000/00000_00000.ppm").write_bytes(data)
    np.testing.assert_array_equal(read_gtsrb(root).images[0].numpy(), picture.transpose(2, 0, 1))


def test_classes_tracks_and_frames(tmp_path):
    found = read_gtsrb(write_gtsrb(tmp_path))
    assert (len(found), found.num_classes, found.group) == (40, 43, "track")
    assert found.labels.tolist() == [0] * 20 + [3] * 20
    assert found.factors["track"].tolist() == [i // 4 for i in range(20)] * 2
    assert found.factors["frame"].tolist() == [0, 1, 2, 3] * 10
    # every image is where its row says
    torch.testing.assert_close(found.images[:, 0, 0, 0].long(), 20 + found.factors["track"])
    torch.testing.assert_close(found.images[:, 1, 9, 9].long(), 10 * found.factors["frame"])
    torch.testing.assert_close(found.images[:, 2, 31, 31].long(), found.labels)


def test_the_test_split_has_no_tracks(tmp_path):
    found = read_gtsrb(write_gtsrb(tmp_path), "test")
    assert (found.labels.tolist(), found.group, found.factors["track"].tolist()) == (
        [0, 3, 0],
        None,
        [-1] * 3,
    )


def marked(part):
    return {(int(a), int(b)) for a, b in zip(part.labels, part.factors["track"], strict=True)}


def test_a_holdout_takes_whole_tracks(tmp_path):
    kept, held = read_gtsrb(write_gtsrb(tmp_path)).train_val_split(0.2)
    assert (len(kept), len(held)) == (32, 8)
    assert not marked(kept) & marked(held)
    assert held.labels.unique().tolist() == [0, 3]


def test_without_a_test_table_whole_tracks_are_held_out(tmp_path):
    root = write_gtsrb(tmp_path, test=0)
    train, test = read_gtsrb(root), read_gtsrb(root, "test")
    assert (len(train), len(test)) == (32, 8)
    assert not marked(train) & marked(test)


def test_the_box_is_scaled_to_the_image(tmp_path):
    root, picture = write_gtsrb(tmp_path), np.zeros((32, 32, 3), np.uint8)
    picture[3:29, 3:29] = 200  # 5/50, 6/60, 45/50, 54/60 of 32 pixels are 3.2, 3.2, 28.8, 28.8
    (root / "Final_Training/Images/00000/00000_00000.ppm").write_bytes(ppm(picture))
    whole, cut = read_gtsrb(root), read_gtsrb(root, roi=True)
    assert whole.images[0].min() == 0
    assert cut.images[0].eq(200).all()
    assert cut.images.shape == (40, 3, 32, 32)


def test_the_box_is_cut_to_its_last_pixel(tmp_path):
    root = write_gtsrb(tmp_path)
    picture = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    (root / "Final_Training/Images/00000/00000_00000.ppm").write_bytes(ppm(picture))
    cut = read_gtsrb(root, roi=True, img_size=26).images[0].movedim(0, -1)
    np.testing.assert_array_equal(cut.numpy(), picture[3:29, 3:29])


@pytest.mark.parametrize(
    "box", [(0, 0, 1, 1, 200, 200), (199, 199, 200, 200, 200, 200), (0, 0, 200, 200, 200, 200)]
)
def test_every_box_leaves_a_pixel(tmp_path, box):
    root = write_gtsrb(tmp_path, labels=(0,), tracks=2, frames=1, test=0)
    table = COLUMNS + row("00000_00000.ppm", 0, box) + row("00001_00000.ppm", 0, box)
    (root / "Final_Training/Images/00000/GT-00000.csv").write_text(table)
    assert read_gtsrb(root, roi=True, img_size=8).images.shape == (1, 3, 8, 8)


@pytest.mark.parametrize("images", ["Training", "Train", ""])
def test_other_places_of_the_class_folders(tmp_path, images):
    write_gtsrb(tmp_path / "GTSRB", images=images, test=0)
    assert len(load_dataset("gtsrb", "train", tmp_path, cache_dir=tmp_path / "none")) == 32


def test_by_path_in_another_size_and_gray(tmp_path):
    found = load_dataset(write_gtsrb(tmp_path), "test", img_size=(20, 24), in_chans=1)
    assert found.images.shape == (3, 1, 20, 24)


def write_table(root, text):
    (root / "Final_Training/Images/00000/GT-00000.csv").write_text(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Filename,ClassId\n", "no column 'Filename'; expected Filename;Width"),
        (COLUMNS, "no image in this table"),
        (COLUMNS + row("00000_00000.ppm", 43), "line 2: expected a ClassId from 0 to 42, got 43"),
        (COLUMNS + row("00000_00000.ppm", "x"), "line 2: expected whole numbers in Width"),
        (
            COLUMNS + row("00000_00000.ppm", 0, (5, 5, 4, 9, 32, 32)),
            "the box 5, 5 to 4, 9 does not lie in 32 × 32",
        ),
        (
            COLUMNS + row("00000_00000.ppm", 0, (0, 0, 33, 9, 32, 32)),
            "the box 0, 0 to 33, 9 does not lie",
        ),
        (COLUMNS + row("no.ppm", 0), "line 2: no such file"),
        (COLUMNS + "00000_00000.ppm;32\n", "line 2: expected whole numbers"),
    ],
)
def test_damaged_tables(tmp_path, text, words):
    root = write_gtsrb(tmp_path)
    write_table(root, text)
    with pytest.raises(DataError, match=words):
        read_gtsrb(root)


@pytest.mark.parametrize("left", [0, 2, 20, 1000])
def test_a_truncated_image_is_named(tmp_path, left):
    path = write_gtsrb(tmp_path) / "Final_Training/Images/00003/00002_00001.ppm"
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(DataError, match=r"00002_00001\.ppm"):
        read_gtsrb(tmp_path)


def test_no_such_folder(tmp_path):
    with pytest.raises(DataError, match="no Final_Training/Images/00000/GT-00000.csv"):
        read_gtsrb(tmp_path)

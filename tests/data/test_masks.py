"""Masks as files: folders, tables and lists of classes."""

import numpy as np
import pytest
import torch
from PIL import Image

from torchcaps.data import load_dataset
from torchcaps.data.masks import palette, write_mask

from .makers import assert_refused, picture, write_masks


def test_masks_of_indices_have_numbered_classes(tmp_path):
    images = load_dataset(write_masks(tmp_path))
    assert images.classes == ("background", "class 1", "class 2")
    assert set(images.labels.tolist()) == {1, 2}


def test_colors_of_masks_are_named_by_a_list(tmp_path):
    folder = write_masks(tmp_path / "colored", colors=True)
    assert_refused(r"the mask is in colors; name the classes .* in classes\.txt", folder)
    rgb = "{0[0]} {0[1]} {0[2]}".format
    sky, tree_top, sea = map(rgb, palette(3))
    (folder / "classes.txt").write_text(f"sky {sky}\ntree top {tree_top}\nsea {sea}")
    images = load_dataset(folder)
    assert images.classes == ("sky", "tree top", "sea")
    indexed = load_dataset(write_masks(tmp_path / "indexed"))
    assert torch.equal(images.targets["mask"], indexed.targets["mask"])


def count_pixels(folder):
    """Number of pixels of each class in both splits."""
    splits = [load_dataset(folder, split).targets["mask"] for split in ("train", "test")]
    return torch.cat(splits).flatten().bincount()


def test_a_list_of_classes_orders_the_indices_of_masks(tmp_path):
    folder = write_masks(tmp_path)
    counts = count_pixels(folder)
    (folder / "classes.csv").write_text("class,value\nground,0\nb,2\na,1\n")
    assert load_dataset(folder).classes == ("ground", "b", "a")
    assert torch.equal(count_pixels(folder), counts[[0, 2, 1]])


def test_masks_are_resized_by_the_pixel_at_the_center(tmp_path):
    """A column of the half-sized mask lies where the second of two columns was, as in its image."""
    folder = write_masks(tmp_path, count=5)
    mask = np.zeros((16, 16), dtype=np.uint8)
    mask[:, 1::4] = 1
    mask[:, 3::4] = 2
    for file in (folder / "masks").iterdir():
        write_mask(file, mask, 3)
    small = load_dataset(folder, img_size=8)
    assert small.targets["mask"][0, 0].tolist() == [1, 2] * 4


def test_black_and_white_masks_are_foreground_in_both_splits(tmp_path):
    for split, count in (("train", 4), ("test", 3)):
        folder = write_masks(tmp_path / "own" / split, count)
        for file in (folder / "masks").iterdir():
            Image.fromarray((np.asarray(Image.open(file)) > 0).astype(np.uint8) * 255).save(file)
    train_images = load_dataset(tmp_path / "own")
    test_images = load_dataset(tmp_path / "own", "test", img_size=8)
    assert (len(train_images), len(test_images)) == (4, 3)
    assert train_images.classes == ("background", "foreground")
    assert test_images.targets["mask"].shape == (3, 8, 8)
    assert set(test_images.targets["mask"].unique().tolist()) == {0, 1}


def test_a_table_of_images_and_masks(tmp_path):
    write_masks(tmp_path / "own")
    table = tmp_path / "own.csv"
    lines = ["image,mask,split"]
    for k in range(10):
        split = "test" if k > 6 else "train"
        lines.append(f"own/images/case {k}.png,own/masks/case {k}.png,{split}")
    table.write_text("\n".join(lines))
    assert len(load_dataset(table, "train")) == 7
    assert len(load_dataset(table, "test")) == 3
    table.write_text("image,mask\nown/images/case 1.png,own/masks/case 77.png\n")
    assert_refused(r"own\.csv line 2: no such file .*case 77\.png", table)


def paint(folder, mask, name="case 0.png"):
    write_mask(folder / "masks" / name, mask.astype(np.uint8), 3)


def name_classes(text):
    return lambda folder: (folder / "classes.txt").write_text(text)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda folder: paint(folder, np.ones((16, 15))),
            r"case 0\.png: expected .* \(16, 16\), as its image .*, got \(16, 15\)",
        ),
        (
            lambda folder: (folder / "masks" / "case 3.png").unlink(),
            r"images/case 3\.png: there is no mask of this name beside it",
        ),
        (
            lambda folder: [paint(folder, np.zeros((16, 16)), f"case {k}.png") for k in range(10)],
            "every mask holds 'background' alone",
        ),
        (
            lambda folder: picture((16, 16), color=False).save(folder / "masks" / "case 0.png"),
            r"case 0\.png: value 255 is no class index up to 32",
        ),
        (name_classes("a\nb\n"), r"case 1\.png: value 2 is no class of classes\.txt"),
        (
            name_classes("a,0,0,0\nb,230,159,0\n"),
            r"case 1\.png: color \(86, 180, 233\) is no class of classes\.txt",
        ),
        (name_classes("a,0\nb\n"), r"classes\.txt: expected a line for each of 2 to 256 classes"),
        (name_classes("a 0\nb 0\n"), r"classes\.txt: expected .* which no other class has"),
    ],
)
def test_bad_folders_get_one_sentence(tmp_path, spoil, message):
    folder = write_masks(tmp_path / "own")
    spoil(folder)
    assert_refused(message, folder)

"""Label trees: from the names of classes, from nested folders, from the columns of a CSV."""

import pytest

from torchcaps.data import label_tree, load_dataset

from .makers import SHARED, assert_refused, both_splits, needs_shared, picture, write_folder

PATHS = ("animals/cats/lynx", "animals/dogs/wolf", "things/cups/mug")


def test_names_of_classes_are_a_tree():
    tree = label_tree(("b/x/1", "a/y/2", "b/x/3", "b/z/4", "a/y/5"))
    assert tree.levels[:2] == (("b", "a"), ("b/x", "a/y", "b/z"))
    assert tree.sizes == (2, 3, 5)
    assert tree.parents == ((0, 1, 0), (0, 1, 0, 2, 1))
    assert tree.ancestors == [[0, 0, 0], [1, 1, 1], [0, 0, 2], [0, 2, 3], [1, 1, 4]]


@pytest.mark.parametrize("classes", [(), ("0", "1"), ("T-shirt/top", "Trouser"), ("a/b/c", "a/d")])
def test_other_names_make_no_tree(classes):
    assert label_tree(classes) is None


def test_equal_names_under_two_parents_are_two_classes():
    assert label_tree(("a/other", "b/other")).sizes == (2, 2)


@pytest.mark.parametrize("levels", [("",), ("train", "test")])
def test_nested_folders_are_a_tree(tmp_path, levels):
    root = write_folder(tmp_path / "own", PATHS, levels=levels)
    (root / levels[0] / "animals" / ".cache").mkdir()
    images = load_dataset(root)
    assert images.classes == load_dataset(root, "test").classes == PATHS
    assert label_tree(images.classes).sizes == (2, 3, 3)
    train, val = images.train_val_split(0.3)
    assert train.classes == val.subset([0]).classes == PATHS


def test_folders_of_several_depths_are_refused(tmp_path):
    root = write_folder(tmp_path / "own", ("animals/lynx", "mug"))
    places = ".*png in 'animals/lynx' and .*png in 'mug'"
    assert_refused(f"{root}: expected every image at one depth, got {places}$", root)


def test_labels_of_a_csv_that_are_paths_are_a_tree(tmp_path):
    """Three animals a leaf, six pictures of each, which stay on one side of every split."""
    rows = ["file,label,who"]
    for number in range(54):
        picture(seed=number).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{PATHS[number // 18]},animal {number // 6}")
    (tmp_path / "own.csv").write_text("\n".join(rows))
    train, test = both_splits(tmp_path / "own.csv", group_column="who")
    assert label_tree(train.classes).sizes == (2, 3, 3)
    inner, val = train.train_val_split(0.5)
    parts = [set(part.groups.tolist()) for part in (inner, val, test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 9
    assert test.classes == val.classes == train.classes == PATHS


@needs_shared("fashion-mnist")
def test_fashion_mnist_in_groups():
    images = load_dataset("fashion-mnist-tree", "test", root=SHARED)
    flat = load_dataset("fashion-mnist", "test", root=SHARED)
    assert images.labels.equal(flat.labels)
    assert images.name == "fashion-mnist-tree"
    names = [path.split("/")[-1].lower() for path in images.classes]
    assert names == [name.partition("/")[0].lower() for name in flat.classes]
    tree = label_tree(images.classes)
    assert tree.sizes == (2, 6, 10)
    assert [path[1] for path in tree.ancestors] == [0, 1, 0, 2, 3, 4, 0, 4, 5, 4]
    assert [path[0] for path in tree.ancestors] == [0, 0, 0, 0, 0, 1, 0, 1, 1, 1]

"""Label trees: from the names of classes, from nested folders, from the columns of a CSV."""

import pytest
import torch

from torchcaps.data import label_tree, load_dataset

from .makers import SHARED, assert_refused, needs_shared, picture, write_folder

PATHS = ("animals/cats/lynx", "animals/dogs/wolf", "things/cups/mug")
LEAVES = (("animals", "lynx"), ("animals", "wolf"), ("things", "mug"))


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


def test_folders_of_one_name_under_two_parents_are_refused(tmp_path):
    root = write_folder(tmp_path / "own", ("cats/other", "dogs/other", "dogs/wolf"))
    assert_refused(
        f"{root}: label 'other' has two parents, 'cats' and 'dogs'; a label needs one", root
    )


def write_table(tmp_path, head, rows):
    picture().save(tmp_path / "0.png")
    (tmp_path / "own.csv").write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return tmp_path / "own.csv"


def test_columns_of_a_csv_are_levels(tmp_path):
    rows = []
    for coarse, fine in LEAVES:
        for split in ("train", "train", "test"):
            rows.append(f"0.png,{coarse}, {fine},{split}")
    path = write_table(tmp_path, "image,coarse,fine,split", rows)
    train = load_dataset(path)
    assert train.classes == ("animals/lynx", "animals/wolf", "things/mug")
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert load_dataset(path, "test").labels.tolist() == [0, 1, 2]


def test_a_tree_with_a_group_column_keeps_groups_together(tmp_path):
    """Three animals a leaf, six pictures of each; neither option switches the other off."""
    rows = []
    for number in range(54):
        coarse, fine = LEAVES[number // 18]
        picture(seed=number).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{coarse},{fine},animal {number // 6}")
    (tmp_path / "own.csv").write_text("\n".join(["image,coarse,fine,who", *rows]))
    train = load_dataset(tmp_path / "own.csv", group_column="who")
    test = load_dataset(tmp_path / "own.csv", "test", group_column="who")
    assert label_tree(train.classes).sizes == (2, 3)
    assert torch.equal(train.targets["who"], train.groups)
    inner, val = train.train_val_split(0.5)
    parts = [set(part.groups.tolist()) for part in (inner, val, test)]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 9
    assert test.classes == val.classes == train.classes


def test_labels_of_an_ordinary_csv_may_hold_a_slash(tmp_path):
    path = write_table(tmp_path, "file,label", ["0.png,T-shirt/top", "0.png,Trouser"] * 2)
    assert load_dataset(path).classes == ("T-shirt/top", "Trouser")


@pytest.mark.parametrize(
    ("head", "rows", "message"),
    [
        (
            "image,coarse,fine",
            ["0.png,a,x", "0.png,,y"],
            " line 3: label 'y' has no parent; 'coarse' is empty",
        ),
        ("image,a,b,c", ["0.png,k,m,x", "0.png,l,m,y"], ": label 'm' has two parents, 'k' and 'l'"),
        (
            "image,coarse,fine",
            ["0.png,a,"],
            " line 2: expected a file and a label, got '0.png' and ''",
        ),
        (
            "image,coarse,fine",
            ["0.png,a,x/y"],
            r" line 2: expected labels without '/', which separates the levels",
        ),
        (
            "image,fine",
            ["0.png,x"],
            ": no column 'of labels'; expected image,coarse,fine or",
        ),
        (
            "file,coarse,fine",
            ["0.png,a,x"],
            ": no column 'image'; expected image,coarse,fine or .* and optionally split",
        ),
    ],
)
def test_an_unsuitable_table_is_refused(tmp_path, head, rows, message):
    path = write_table(tmp_path, head, rows)
    assert_refused(f"^{path}{message}", path)


@needs_shared("fashion-mnist")
def test_fashion_mnist_in_groups():
    images = load_dataset("fashion-mnist-tree", "test", root=SHARED)
    flat = load_dataset("fashion-mnist", "test", root=SHARED)
    assert images.labels.equal(flat.labels)
    assert images.name == "fashion-mnist-tree"
    assert [path.split("/")[-1] for path in images.classes] == [
        "T-shirt",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ]
    tree = label_tree(images.classes)
    assert tree.sizes == (2, 6, 10)
    assert [path[1] for path in tree.ancestors] == [0, 1, 0, 2, 3, 4, 0, 4, 5, 4]
    assert [path[0] for path in tree.ancestors] == [0, 0, 0, 0, 0, 1, 0, 1, 1, 1]

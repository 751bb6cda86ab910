"""Label trees: from the names of classes, from nested folders, from the columns of a CSV."""

import pytest

from torchcaps.data import label_tree, load_dataset
from torchcaps.errors import DataError

from .makers import SHARED, needs_shared, picture, write_folder

PATHS = ("animals/cats/lynx", "animals/dogs/wolf", "things/cups/mug")
LEAVES = (("animals", "lynx"), ("animals", "wolf"), ("things", "mug"))


def test_a_taxonomy_is_read_off_the_names():
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
def test_nested_folders(tmp_path, levels):
    root = write_folder(tmp_path / "own", PATHS, levels=levels)
    (root / levels[0] / "animals" / ".cache").mkdir()
    train, test = (load_dataset(root, split) for split in ("train", "test"))
    assert train.classes == test.classes == PATHS
    assert label_tree(train.classes).sizes == (2, 3, 3)
    kept, held = train.train_val_split(0.3)
    assert kept.classes == held.subset([0]).classes == PATHS


def test_folders_of_several_depths(tmp_path):
    root = write_folder(tmp_path / "own", ("animals/lynx", "mug"))
    message = f"{root}: expected every image at one depth, got .*png in 'animals/lynx' and .*png in 'mug'$"
    with pytest.raises(DataError, match=message):
        load_dataset(root)


def test_folders_of_one_name_under_two_parents(tmp_path):
    root = write_folder(tmp_path / "own", ("cats/other", "dogs/other", "dogs/wolf"))
    with pytest.raises(
        DataError,
        match=f"{root}: label 'other' has two parents, 'cats' and 'dogs'; a label needs one",
    ):
        load_dataset(root)


def test_an_empty_class_of_a_tree(tmp_path):
    root = write_folder(tmp_path / "own", PATHS)
    (root / "things" / "bowls").mkdir()
    with pytest.raises(DataError, match=r"things/bowls: class 'bowls' is empty; expected images"):
        load_dataset(root)


def test_a_folder_that_leads_back(tmp_path):
    root = write_folder(tmp_path / "own", PATHS)
    (root / "round").mkdir()
    (root / "round" / "again").symlink_to(root / "round")
    with pytest.raises(DataError):
        load_dataset(root)


def written(tmp_path, head, rows):
    picture().save(tmp_path / "0.png")
    (tmp_path / "own.csv").write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")
    return tmp_path / "own.csv"


def test_levels_in_a_csv(tmp_path):
    rows = [
        f"0.png,{coarse}, {fine},{split}"
        for coarse, fine in LEAVES
        for split in ("train", "train", "test")
    ]
    path = written(tmp_path, "image,coarse,fine,split", rows)
    train, test = load_dataset(path), load_dataset(path, "test")
    assert train.classes == ("animals/lynx", "animals/wolf", "things/mug")
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 0, 1, 1, 2, 2], [0, 1, 2])
    more = [f"life,{rest}" for rest in ("x,lynx,0.png", "x,wolf,0.png") * 2]
    path = written(tmp_path, "kingdom,family,species,image", more)
    assert load_dataset(path).classes == ("life/x/lynx", "life/x/wolf")


def test_labels_of_an_ordinary_csv_may_hold_a_slash(tmp_path):
    path = written(tmp_path, "file,label", ["0.png,T-shirt/top", "0.png,Trouser"] * 2)
    assert load_dataset(path).classes == ("T-shirt/top", "Trouser")


@pytest.mark.parametrize(
    ("head", "rows", "message"),
    [
        (
            "image,coarse,fine",
            ["0.png,a,x", "0.png,,y"],
            " line 3: label 'y' has no parent; 'coarse' is empty",
        ),
        ("image,a,b,c", ["0.png,k,,y"], " line 2: label 'y' has no parent; 'b' is empty"),
        (
            "image,coarse,fine",
            ["0.png,a,x", "0.png,b,x"],
            ": label 'x' has two parents, 'a' and 'b'; a label needs",
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
            ": a column of labels is missing; expected image,coarse,fine or more levels, got",
        ),
        ("image,coarse,split", ["0.png,x,test"], ": a column of labels is missing"),
        (
            "file,coarse,fine",
            ["0.png,a,x"],
            ": no column 'image'; expected image,coarse,fine and optionally split",
        ),
        ("image,coarse,fine", ["1.png,a,x"], r" line 2: no such file .*1\.png"),
    ],
)
def test_bad_tables(tmp_path, head, rows, message):
    path = written(tmp_path, head, rows)
    with pytest.raises(DataError, match=f"^{path}{message}") as caught:
        load_dataset(path)
    assert "\n" not in str(caught.value)


@needs_shared("fashion-mnist")
def test_fashion_mnist_in_groups():
    tree, plain = (
        load_dataset(name, "test", root=SHARED) for name in ("fashion-mnist-tree", "fashion-mnist")
    )
    assert tree.labels.equal(plain.labels) and tree.name == "fashion-mnist-tree"
    assert [path.split("/")[-1] for path in tree.classes] == [
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
    found = label_tree(tree.classes)
    assert found.sizes == (2, 6, 10)
    assert [path[1] for path in found.ancestors] == [0, 1, 0, 2, 3, 4, 0, 4, 5, 4]
    assert [path[0] for path in found.ancestors] == [0, 0, 0, 0, 0, 1, 0, 1, 1, 1]

import numpy as np
import pytest
from PIL import Image

from torchcaps.data import ReadRequest, load_dataset, read_table

from .makers import assert_refused, both_splits, picture, refusal


def write_table(tmp_path, text, count=10):
    (tmp_path / "pictures").mkdir()
    for i in range(count):
        picture(seed=i).save(tmp_path / "pictures" / f"{i}.png")
    (tmp_path / "own.csv").write_text(text, encoding="utf-8")
    return tmp_path / "own.csv"


def rows(count=10, tail=lambda i: ""):
    return "".join(f"pictures/{i}.png,{'cat' if i % 2 else 'dog'}{tail(i)}\n" for i in range(count))


def test_a_table_without_splits_is_split_by_class(tmp_path):
    path = write_table(tmp_path, "file,label\n" + rows())
    train, test = both_splits(path)
    assert train.classes == ("cat", "dog")
    assert (train.labels.tolist(), test.labels.tolist()) == ([0] * 4 + [1] * 4, [0, 1])
    assert train.name == "own"


def test_split_column_other_columns_and_a_byte_order_mark(tmp_path):
    split = rows(tail=lambda i: f",{'test' if i < 3 else ' Train '},x")
    path = write_table(tmp_path, "\ufefffile,label,split,comment\n" + split)
    test = load_dataset(path, "test")
    assert test.labels.tolist() == [0, 1, 1]
    stored = [np.asarray(Image.open(tmp_path / "pictures" / f"{i}.png")) for i in (1, 0, 2)]
    assert np.array_equal(test.images.movedim(1, -1).numpy(), np.stack(stored))
    assert len(load_dataset(path)) == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "name,label\na,b\n",
            ": no column 'file'; expected file,label or .* and optionally split, got name,label",
        ),
        ("", ": no column 'file'; .* got an empty file"),
        (
            "file,label,split\n" + rows(2, lambda i: ",dev"),
            " line 2: expected split 'train', 'val' or 'test', got 'dev'",
        ),
    ],
)
def test_an_unsuitable_table_is_refused(tmp_path, text, message):
    path = write_table(tmp_path, text)
    assert_refused(f"{path}{message}", path)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = write_table(tmp_path, "")
    path.write_bytes(b"file,label\n\xff\xfe,x\n")
    assert_refused(f"{path}: cannot be read as a CSV", path)
    with refusal(r"nowhere\.csv: cannot be read"):
        read_table(tmp_path / "nowhere.csv", ReadRequest("train"))

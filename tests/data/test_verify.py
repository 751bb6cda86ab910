import gzip

from torchcaps.data import Mirror, fetch_dataset, verify_dataset as verify
from torchcaps.data.sets.mnist import FOLDER
from torchcaps.errors import UnknownNameError

from .makers import refusal
from .web import CONTENT


def test_an_embedded_set_is_not_fetched(tmp_path):
    assert fetch_dataset("digits", tmp_path) == FOLDER
    assert all(check.ok for check in verify("digits"))
    assert list(tmp_path.iterdir()) == []
    with refusal("did you mean 'mnist'", UnknownNameError):
        fetch_dataset("minst", tmp_path)


def test_a_set_that_is_nowhere_is_not_verified(tmp_path, register):
    register(Mirror("http://127.0.0.1:9/"))
    with refusal("torchcaps data fetch toy"):
        verify("toy", tmp_path, tmp_path)


def test_missing_and_damaged_files_are_reported(tmp_path, register):
    register(Mirror("http://127.0.0.1:9/"))
    (tmp_path / "big.gz").write_bytes(gzip.compress(CONTENT["big"], 1, mtime=0)[:500])
    truncated, missing = verify("toy", tmp_path, tmp_path / "none")
    reason = "truncated, it ends before its data does"
    assert truncated == (str(tmp_path / "big.gz"), False, reason)
    assert missing == (str(tmp_path / "small"), False, "missing")

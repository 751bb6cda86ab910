import gzip

import pytest

from torchcaps.data import Mirror, fetch_dataset, verify_dataset as verify
from torchcaps.data.sets.mnist import FOLDER
from torchcaps.errors import DataError, UnknownNameError

from .web import CONTENT


def test_embedded_and_unknown(tmp_path):
    assert fetch_dataset("digits", tmp_path) == FOLDER
    assert all(check.ok for check in verify("digits"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UnknownNameError, match="did you mean 'mnist'"):
        fetch_dataset("minst", tmp_path)


def test_verify_what_is_nowhere(tmp_path, register):
    register(Mirror("http://127.0.0.1:9/"))
    with pytest.raises(DataError, match="torchcaps data fetch toy"):
        verify("toy", tmp_path, tmp_path)


def test_verify_says_what_is_missing_and_damaged(tmp_path, register):
    register(Mirror("http://127.0.0.1:9/"))
    (tmp_path / "big.gz").write_bytes(gzip.compress(CONTENT["big"], 1, mtime=0)[:500])
    found = {
        check.file: (check.ok, check.reason) for check in verify("toy", tmp_path, tmp_path / "none")
    }
    assert found == {
        str(tmp_path / "big.gz"): (False, "truncated gzip file, it ends before its data does"),
        str(tmp_path / "small"): (False, "missing"),
    }

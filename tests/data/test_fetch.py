"""Fetching files and their repair, against a server on this machine; never the network."""

import gzip

import pytest

from torchcaps.data import Mirror, fetch_dataset, sources, verify_dataset as verify
from torchcaps.data.reading import read_bytes
from torchcaps.errors import DataError

from .makers import refusal
from .web import CONTENT, Server, names_in


def test_files_are_fetched_and_verified(tmp_path, server, register):
    register(Mirror(server.url))
    steps = []
    folder = fetch_dataset("toy", tmp_path, lambda *step: steps.append(step))
    assert folder == tmp_path / "toy"
    assert {name: read_bytes(folder / f"{name}.gz") for name in CONTENT} == CONTENT
    assert names_in(tmp_path) == ["big.gz", "small.gz"]
    size = len(server.files["/big.gz"])
    assert ("big.gz", size, size) in steps
    for check in verify("toy", cache_dir=tmp_path):
        assert check.ok
        assert check.reason == "SHA-256 as published"


def test_files_in_the_cache_are_not_fetched_again(tmp_path, server, register):
    register(Mirror(server.url))
    fetch_dataset("toy", tmp_path)
    server.requests.clear()
    fetch_dataset("toy", tmp_path)
    assert server.requests == []
    (tmp_path / "toy" / "small.gz").unlink()
    fetch_dataset("toy", tmp_path)
    assert server.requests == ["/small.gz"]


def test_a_broken_transfer_leaves_nothing_and_starts_again(tmp_path, server, register):
    register(Mirror(server.url))
    server.cut["/big.gz"] = 1_000_000
    with refusal(r"could not fetch big, small .*broke off after 1,000,000 of 3,"):
        fetch_dataset("toy", tmp_path)
    assert list(tmp_path.iterdir()) == []
    fetch_dataset("toy", tmp_path)
    assert names_in(tmp_path) == ["big.gz", "small.gz"]
    assert all(check.ok for check in verify("toy", cache_dir=tmp_path))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (gzip.compress(b"other", mtime=0), "the bytes are not the published ones"),
        (
            gzip.compress(CONTENT["big"], 1, mtime=0)[:-2000],
            "truncated, it ends before its data does",
        ),
    ],
)
def test_wrong_bytes_are_removed(tmp_path, server, register, data, reason):
    register(Mirror(server.url))
    server.files["/big.gz"] = data
    with refusal(f"toy: could not fetch big, small .*{server.url}: big: {reason}"):
        fetch_dataset("toy", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_every_source_is_tried_and_named(tmp_path, server, register):
    register(Mirror(server.url + "one/"), Mirror("http://127.0.0.1:9/"))
    with pytest.raises(DataError) as caught:
        fetch_dataset("toy", tmp_path)
    for reason in (
        f"{server.url}one/: HTTP Error 404: Not Found",
        "http://127.0.0.1:9/: ",
        f"get them from none and put them into {tmp_path / 'toy'}",
    ):
        assert reason in str(caught.value)


def test_a_second_mirror_goes_on_where_the_first_failed(tmp_path, server, register):
    register(Mirror(server.url + "one/"), Mirror(server.url))
    server.files["/one/big.gz"] = server.files["/big.gz"]
    assert names_in(fetch_dataset("toy", tmp_path)) == ["big.gz", "small.gz"]
    assert server.requests == ["/one/big.gz", "/one/small.gz", "/small.gz"]


def test_a_damaged_file_in_the_cache_is_replaced(tmp_path, server, register):
    register(Mirror(server.url))
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "small").write_bytes(b"damaged")
    (tmp_path / "toy" / "big").write_bytes(CONTENT["big"])
    assert [check.ok for check in verify("toy", cache_dir=tmp_path)] == [True, False]
    fetch_dataset("toy", tmp_path)
    assert names_in(tmp_path) == ["big", "small.gz"]


def test_a_cache_that_cannot_be_written(tmp_path, server, register):
    register(Mirror(server.url))
    (tmp_path / "file").touch()
    with refusal("file/toy: cannot be written"):
        fetch_dataset("toy", tmp_path / "file")
    assert server.requests == []


def test_a_full_disk_ends_the_attempt(tmp_path, server, register, monkeypatch):
    register(Mirror(server.url), Mirror(server.url))
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr(sources.Path, "open", lambda *_: full)
        with refusal(r"toy: cannot be written \(No space left on device"):
            fetch_dataset("toy", tmp_path)
    assert server.requests == ["/big.gz"]


def test_a_silent_server_times_out(tmp_path, monkeypatch, register):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(sources, "TIMEOUT", 0.2)
    with Server() as silent:
        register(Mirror(silent.url))
        with refusal("timed out"):
            fetch_dataset("toy", tmp_path)

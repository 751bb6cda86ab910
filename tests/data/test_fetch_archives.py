"""Fetching archives, against a server on this machine."""

import hashlib
import os
from dataclasses import replace

import pytest

from torchcaps.data import (
    Archive,
    Mirror,
    Rendering,
    _registry,
    fetch_dataset,
    load_dataset,
    verify_dataset as verify,
)

from .makers import refusal, tar_bytes
from .web import CONTENT, DIGESTS, names_in


def archive_of(files, folder="inside"):
    return tar_bytes({f"{folder}/{name}": data for name, data in files.items()}, "w:gz")


@pytest.mark.parametrize("sha256", [DIGESTS, dict.fromkeys(CONTENT)])
def test_only_the_files_of_the_set_are_unpacked(tmp_path, server, register, sha256):
    data = archive_of({**CONTENT, "../../evil": b"x", "other": b"y"})
    server.files["/toy.tar.gz"] = data
    register(
        Archive(f"{server.url}toy.tar.gz", "inside", hashlib.sha256(data).hexdigest()),
        sha256=sha256,
    )
    folder = fetch_dataset("toy", tmp_path)
    assert {name: (folder / name).read_bytes() for name in CONTENT} == CONTENT
    assert names_in(tmp_path) == ["big", "small"]


@pytest.mark.skipif(os.name == "nt", reason="the client of the test is a shell script")
@pytest.mark.parametrize(("status", "reason"), [(0, None), (1, "npm:toy@1: .*exit status 1")])
def test_a_package_is_downloaded_by_its_client(tmp_path, register, monkeypatch, status, reason):
    data = archive_of(CONTENT, "package")
    (tmp_path / "toy.archive").write_bytes(data)
    client = tmp_path / "bin" / "npm"
    client.parent.mkdir()
    client.write_text(
        f'#!/bin/sh\n[ "$1 $2 $3" = "pack toy@1 --ignore-scripts" ] || exit 2\n'
        f"cp {tmp_path}/toy.archive toy-1.tgz; exit {status}\n"
    )
    client.chmod(0o755)
    monkeypatch.setenv("PATH", str(client.parent), os.pathsep)
    register(Archive("npm:toy@1", "package", hashlib.sha256(data).hexdigest()))
    cache = tmp_path / "cache"
    if reason is None:
        folder = fetch_dataset("toy", cache)
        assert {name: (folder / name).read_bytes() for name in CONTENT} == CONTENT
        return
    with refusal(reason):
        fetch_dataset("toy", cache)
    assert names_in(cache) == []


def test_a_machine_without_the_client_says_so(tmp_path, register, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    register(Archive("npm:toy@1", "package", "0" * 64))
    with refusal("npm:toy@1: npm is not installed"):
        fetch_dataset("toy", tmp_path)


def test_a_set_without_digests_is_counted(tmp_path, server, register):
    data = archive_of(CONTENT)
    server.files["/toy.tar.gz"] = data
    register(
        Archive(f"{server.url}toy.tar.gz", "inside", hashlib.sha256(data).hexdigest()),
        sha256=dict.fromkeys(CONTENT),
    )
    folder = fetch_dataset("toy", tmp_path)
    assert [check.reason for check in verify("toy", cache_dir=tmp_path)] == [
        "toy: 3 images, expected 3"
    ] * 2
    (folder / "big").write_bytes(CONTENT["big"][:2_000_000])
    for check in verify("toy", cache_dir=tmp_path):
        assert not check.ok
        assert check.reason == "toy: 2 images, expected 3"
    fetch_dataset("toy", tmp_path)
    assert (folder / "big").read_bytes() == CONTENT["big"]


@pytest.mark.parametrize(
    ("data", "digest", "reason"),
    [
        (
            archive_of(CONTENT),
            "0" * 64,
            "the bytes are not the published ones",
        ),
        (archive_of({"big": CONTENT["big"]}), None, "unusable archive .*small"),
        (
            archive_of({**CONTENT, "big": b"x"}),
            None,
            "big: the bytes are not the published ones",
        ),
        (archive_of(CONTENT)[:1_000_000], None, "unusable archive"),
    ],
    ids=["other bytes", "a missing file", "a wrong file", "cut"],
)
def test_a_wrong_archive_is_refused(tmp_path, server, register, data, digest, reason):
    server.files["/toy.tar.gz"] = data
    register(
        Archive(f"{server.url}toy.tar.gz", "inside", digest or hashlib.sha256(data).hexdigest())
    )
    with refusal(reason):
        fetch_dataset("toy", tmp_path)
    assert names_in(tmp_path) in ([], ["big"]), "only a whole, verified file may stay"


def test_a_rendering_is_made_in_the_cache(tmp_path, register):
    def make(folder, progress):
        progress("toy", 1, 2)
        for name in CONTENT:
            (folder / name).write_bytes(CONTENT[name])

    steps = []
    register(Rendering(make))
    folder = fetch_dataset("toy", tmp_path, lambda *step: steps.append(step))
    assert names_in(folder) == ["big", "small"]
    assert steps == [("toy", 1, 2)]
    register(Rendering(lambda folder, progress: None))
    assert fetch_dataset("toy", tmp_path) == folder  # what is there is not made again
    (folder / "small").unlink()
    with refusal("could not fetch small"):
        fetch_dataset("toy", tmp_path)


def test_a_derived_set_is_fetched_and_verified_as_its_base(tmp_path, server, register):
    register(Mirror(server.url))
    derived = replace(_registry.dataset_info("toy"), name="pairs-of-toys", made_from="toy")
    _registry.register_dataset(derived)(_registry.dataset_reader("toy"))
    assert fetch_dataset("pairs-of-toys", tmp_path) == tmp_path / "toy"
    assert all(check.ok for check in verify("pairs-of-toys", cache_dir=tmp_path))
    (tmp_path / "toy" / "big").write_bytes(CONTENT["big"])  # as the stand-in's reader wants it
    assert len(load_dataset("pairs-of-toys", root=tmp_path)) == 3


def test_a_set_without_sources_names_its_page(tmp_path, register):
    register()
    with refusal(r"no address is known\); get them from none and put them into .*/toy$"):
        fetch_dataset("toy", tmp_path)

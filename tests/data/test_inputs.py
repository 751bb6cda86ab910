"""What there is to predict: folders, patterns, archives, pictures, in order and one at a time."""

import os
import tarfile

import numpy as np
import pytest
import torch

from torchcaps.data import Preprocess
from torchcaps.data.inputs import list_inputs
from torchcaps.errors import ArgumentError, DataError

from .makers import pack, picture, refusal

PREPROCESS = Preprocess((8, 6), 3)


def write_tree(folder):
    names = ("10.png", "9.jpg", "b/2.png", "b/1.png", "a/deep/x.png")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        picture(seed=len(name)).save(folder / name)
    return folder


def names(inputs, folder):
    return [os.path.relpath(element.name, folder) for element in list_inputs(inputs, PREPROCESS)]


def problem(path):
    [element] = list_inputs(path, PREPROCESS)
    assert isinstance(element.source, DataError)
    return str(element.source)


def test_a_folder_is_read_at_every_depth_in_natural_order(tmp_path):
    folder = write_tree(tmp_path / "own")
    (folder / "notes.txt").write_text("no image")
    (folder / "README").write_text("no image either")
    (folder / "b" / "2.png").rename(folder / "b" / "2")  # an image by its content
    (folder / ".hidden").mkdir()
    picture().save(folder / ".hidden" / "1.png")
    picture().save(folder / ".1.png")
    (folder / "loop").symlink_to(folder)
    expected = ["9.jpg", "10.png", "a/deep/x.png", "b/1.png", "b/2"]
    assert names(folder, folder) == expected
    assert names([str(folder / "b"), folder / "9.jpg"], folder) == ["b/1.png", "b/2", "9.jpg"]


def test_a_pattern_stands_for_files(tmp_path, monkeypatch):
    folder = write_tree(tmp_path)
    assert names(f"{folder}/*.png", folder) == ["10.png"]
    assert names(f"{folder}/**/*.png", folder) == ["10.png", "a/deep/x.png", "b/1.png", "b/2.png"]
    picture().save(folder / "[1].png")  # a file of that name comes first
    assert names(f"{folder}/[1].png", folder) == ["[1].png"]


@pytest.mark.parametrize("ending", [".tar", ".tar.gz"])
def test_an_archive_is_read_file_by_file(tmp_path, ending):
    folder = write_tree(tmp_path / "own")
    (folder / ".hidden").mkdir()
    picture().save(folder / ".hidden" / "1.png")
    archive = pack(folder, tmp_path / f"own{ending}", "own")
    contents = {
        element.name.removeprefix(f"{archive}:own/"): element.source
        for element in list_inputs(archive, PREPROCESS)
    }
    assert set(contents) == {"9.jpg", "10.png", "a/deep/x.png", "b/1.png", "b/2.png"}
    for name, content in contents.items():
        assert content == (folder / name).read_bytes()


def test_an_archive_cut_short_gives_what_is_whole_and_an_error(tmp_path):
    folder = write_tree(tmp_path / "own")
    with tarfile.open(tmp_path / "own.tar", "w", format=tarfile.USTAR_FORMAT) as file:
        for name in ("9.jpg", "10.png"):
            file.add(folder / name, name)
    archive_bytes = (tmp_path / "own.tar").read_bytes()
    (tmp_path / "own.tar").write_bytes(archive_bytes[:2100])
    first, last = list_inputs(tmp_path / "own.tar", PREPROCESS)
    assert first.source == (folder / "9.jpg").read_bytes()
    assert "own.tar: cannot be read (ReadError: unexpected end" in str(last.source)


def test_what_is_not_there_is_an_error_in_its_place(tmp_path):
    write_tree(tmp_path)
    (tmp_path / "empty").mkdir()
    inputs = [tmp_path / "9.jpg", tmp_path / "gone.png", tmp_path / "10.png"]
    first, error, last = list_inputs(inputs, PREPROCESS)
    assert (first.source, last.source) == (str(inputs[0]), str(inputs[2]))
    assert str(error.source) == f"{inputs[1]}: no such file or folder"
    assert problem(tmp_path / "empty") == f"{tmp_path / 'empty'}: no image in it"
    assert problem(f"{tmp_path}/*.gif") == f"{tmp_path}/*.gif: no image in it"
    assert "File name too long" in problem("x" * 5000)


def test_pictures_in_memory_have_no_name():
    image = torch.rand(3, 8, 6)
    inputs = [image, torch.stack([image, image]), np.zeros((8, 6)), picture()]
    elements = list(list_inputs(inputs, PREPROCESS))
    assert [element.name for element in elements] == [None] * 5
    assert [element.source.shape for element in elements[:4]] == [(3, 8, 6)] * 3 + [(8, 6)]
    assert len(list(list_inputs(torch.rand(4, 3, 8, 6), PREPROCESS))) == 4
    assert len(list(list_inputs(picture(), PREPROCESS))) == 1
    assert PREPROCESS(image.bfloat16()).shape == (3, 8, 6)
    with refusal("expected paths, pictures, arrays .* got None", ArgumentError):
        next(list_inputs(None, PREPROCESS))

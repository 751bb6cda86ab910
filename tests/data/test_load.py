import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from torchcaps.data import (
    Dataset,
    Preprocess,
    _registry,
    dataset_info,
    default_cache_dir,
    list_datasets,
    load_dataset,
    register_format,
)
from torchcaps.data.preprocess import PREPROCESSES
from torchcaps.errors import DataError, UnknownNameError

from .makers import SHARED, assert_refused, needs_shared, refusal, write_idx_set


@pytest.mark.parametrize("name", list_datasets())
def test_every_set_is_in_the_documentation(name):
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    (row,) = [row for row in rows if f"`{name}`" in row.split("|")[1]]
    info = dataset_info(name)
    cells = [cell.strip() for cell in row.split("|")[2:5]]
    assert cells == ["×".join(map(str, info.image_shape)), f"{info.train:,}", f"{info.test:,}"]


@pytest.mark.parametrize("name", list_datasets())
def test_a_folder_without_the_set_is_no_error(name, tmp_path):
    assert _registry.dataset_reader(name)(tmp_path, "train") is None


@pytest.mark.parametrize("place", ["", "mnist"])
@pytest.mark.parametrize("gz", [False, True])
def test_a_set_is_found_below_the_root(tmp_path, place, gz):
    write_idx_set(tmp_path / place, gz=gz)
    images = load_dataset("mnist", "test", tmp_path, cache_dir=tmp_path / "none")
    assert (len(images), images.name, images.classes) == (10, "mnist", tuple("0123456789"))


def test_the_root_goes_before_the_cache(tmp_path):
    write_idx_set(tmp_path / "root" / "mnist", train=30)
    write_idx_set(tmp_path / "cache" / "mnist", train=40)
    assert len(load_dataset("mnist", root=tmp_path / "root", cache_dir=tmp_path / "cache")) == 30
    assert len(load_dataset("mnist", root=tmp_path / "empty", cache_dir=tmp_path / "cache")) == 40
    assert len(load_dataset("mnist", cache_dir=str(tmp_path / "cache"))) == 40


def test_system_folders_come_last(tmp_path, restore):
    write_idx_set(tmp_path / "system", train=30, gz=True)
    info = _registry.dataset_info("fashion-mnist")
    assert info.system_folders == (Path("/usr/share/datasets/fashion-mnist"),)
    info = dataclasses.replace(info, system_folders=(tmp_path / "system",))
    restore(_registry.DATASETS)
    reader = _registry.dataset_reader("fashion-mnist")
    _registry.register_dataset(info, replace=True)(reader)
    images = load_dataset("fashion-mnist", root=tmp_path, cache_dir=tmp_path / "none")
    assert len(images) == 30
    assert images.classes[9] == "Ankle boot"


def test_an_absent_set_lists_its_places_and_the_command(tmp_path):
    with pytest.raises(DataError) as caught:
        load_dataset("mnist", root=tmp_path / "root", cache_dir=tmp_path / "cache")
    message = str(caught.value)
    for place in (tmp_path / "root", tmp_path / "root" / "mnist", tmp_path / "cache" / "mnist"):
        assert f"{place}," in message or f"{place};" in message
    assert message.endswith("get it with: torchcaps data fetch mnist")


def test_the_cache_is_in_the_home(monkeypatch, tmp_path):
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    write_idx_set(tmp_path / ".cache" / "torchcaps" / "mnist")
    assert default_cache_dir() == tmp_path / ".cache" / "torchcaps"
    assert len(load_dataset("mnist")) == 20


def test_a_name_wins_over_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_idx_set(tmp_path / "digits")
    assert len(load_dataset("digits")) == 6000
    assert len(load_dataset("./digits")) == 20
    assert load_dataset("./digits").name == "digits"


@pytest.mark.parametrize(
    ("name", "hint"), [("minst", "did you mean 'mnist'"), ("qqqq", "known: affine-digits,")]
)
def test_an_unknown_name_suggests_others(name, hint):
    with refusal(f"unknown data set '{name}'; {hint}", UnknownNameError):
        load_dataset(name)
    with refusal(hint, UnknownNameError):
        dataset_info(name)


def test_an_absent_path_is_refused():
    for path in ("pictures.npz", Path("minst")):
        assert_refused("no such file or folder", path)


def test_an_unknown_split_is_refused():
    assert_refused("split: expected 'train', 'test' or 'val', got 'valid'", "digits", "valid")


@needs_shared("mnist", "fashion-mnist")
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_real_sets_are_as_described(name):
    info = dataset_info(name)
    for split, count in (("train", info.train), ("test", info.test)):
        images = load_dataset(name, split, SHARED)
        assert images.images.shape == (count, *info.image_shape)
        assert images.labels.bincount().min() > 0.08 * count


@needs_shared("mnist")
def test_files_of_another_set_are_refused(tmp_path):
    for path in (SHARED / "mnist").glob("*labels*"):
        shutil.copy(path, tmp_path)
    assert_refused(
        "these are the labels of 'mnist', not of 'fashion-mnist'", "fashion-mnist", root=tmp_path
    )


def test_a_new_format_is_one_reader(tmp_path, restore):
    restore(_registry.FORMATS)

    def read_pixels(path, _request):
        pixels = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).view(-1, 1, 2, 2)
        return Dataset(pixels, {"label": torch.arange(len(pixels)) % 2}, ("a", "b"), path.stem)

    register_format("a .pixels file", lambda path: path.suffix == ".pixels", read_pixels)
    (tmp_path / "own.pixels").write_bytes(bytes(range(16)))
    images = load_dataset(tmp_path / "own.pixels", in_chans=3, img_size=4)
    assert (images.images.shape, images.name) == ((4, 3, 4, 4), "own")
    (tmp_path / "own.other").touch()
    assert_refused(
        r"own\.other: not a data set; expected .*, a \.pixels file", tmp_path / "own.other"
    )
    (tmp_path / "cut.pixels").write_bytes(b"123")
    assert_refused(r"cut\.pixels: cannot be read \(RuntimeError: ", tmp_path / "cut.pixels")


def test_a_format_of_signals_is_one_file(tmp_path):
    """Set, preprocessing and reader are declared together; nothing else knows the kind."""
    with _registry.FORMATS.restored(), PREPROCESSES.restored():

        @dataclass(frozen=True)
        class SignalPreprocess(Preprocess, kind="signals"):
            pass

        def read_signals(path, request):
            assert request.split == "train"
            signals = torch.zeros(4, 1, 1, 16)
            targets = {"label": torch.arange(4) % 2}
            return Dataset(signals, targets, ("a", "b"), path.stem, preprocess=SignalPreprocess)

        register_format("a .signal file", lambda path: path.suffix == ".signal", read_signals)
        (tmp_path / "own.signal").touch()
        signals = load_dataset(tmp_path / "own.signal")
        assert signals.preprocess.kind == "signals"
        preprocess = signals.preprocess(signals.img_size, signals.in_chans)
        assert Preprocess.from_dict(preprocess.to_dict()) == preprocess
        assert not preprocess.is_picture
        with refusal("'signals' is registered already", ValueError):
            type("Again", (Preprocess,), {}, kind="signals")

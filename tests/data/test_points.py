"""Sets of points: files of one's own, the planes, what is refused, what prediction does."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from torchcaps.data import (
    Preprocess,
    load_dataset,
    make_planes,
    point_set,
)
from torchcaps.data.inputs import list_inputs
from torchcaps.data.points import RADIUS, PointPreprocess, standardized_points

from .makers import assert_refused, both_splits, refusal

RANDOM = np.random.RandomState(0)
SETS = RANDOM.normal(size=(10, 6, 2)) * 7 + 100


def test_the_planes_are_always_the_same():
    train, test = both_splits("planes")
    assert (len(train), len(test)) == (512, 64)
    assert train.images.shape == (512, 2, 256, 1)
    assert train.classes == ("plane",)
    assert torch.equal(make_planes(3, seed=1).images, test.images[:3])
    assert "64 images 2 × 256 × 1 float32, 1 classes: plane" in repr(test)
    assert test.preprocess.size_in_words(test.inputs.shape) == "256 points in 2 dimensions each"
    mean = train.images.squeeze(3).mean(dim=2)
    assert_close(mean, torch.zeros(512, 2), atol=1e-6, rtol=0)
    assert_close(train.images.square().sum(dim=1).mean(dim=(1, 2)), torch.full((512,), RADIUS**2))


@pytest.mark.parametrize("dim", [2, 3])
def test_a_file_without_splits_is_split(tmp_path, dim):
    sets = np.random.RandomState(1).normal(size=(10, 6, dim))
    np.savez(tmp_path / "sets.npz", points=sets)
    for split, count in (("train", 8), ("test", 2)):
        points = load_dataset(tmp_path / "sets.npz", split)
        assert points.preprocess is PointPreprocess
        assert (points.name, points.images.shape) == ("sets", (count, dim, 6, 1))


def test_splits_of_a_file_are_read(tmp_path):
    np.savez(tmp_path / "two.npz", points_train=SETS[:7], points_test=SETS[7:])
    assert len(load_dataset(tmp_path / "two.npz")) == 7
    test = load_dataset(tmp_path / "two.npz", "test")
    assert_close(test.images, standardized_points("x", SETS[7:]))


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (SETS[:, :1], r"got \[n=10, points=1, coordinates=2\]"),
        (np.where(SETS > 115, np.inf, SETS), "set 0 .* holds NaN"),
        (
            np.array([[[2, 2], [2, 2]], [[0, 1], [1, 1]]]),
            "the points of set 0 all lie in one place",
        ),
        (SETS[:1], "no class has two images"),
        (np.full((4, 3, 2), "a"), "expected coordinates that are numbers, got <U1"),
        (
            np.array([SETS[0], SETS[1, :2]], dtype=object),
            "cannot be read as an .npz of plain arrays",
        ),
    ],
)
def test_an_unsuitable_npz_gets_one_sentence(tmp_path, points, message):
    np.savez(tmp_path / "bad.npz", points=points)
    assert_refused(message, tmp_path / "bad.npz")


def test_the_scale_of_numbers_does_not_matter():
    for factor in (1e-200, 1e200):
        assert_close(standardized_points("x", SETS * factor), standardized_points("x", SETS))


def test_points_are_not_resized():
    planes = make_planes(2)
    assert torch.equal(planes.resized((256, 1), 2).images, planes.images)
    for size, channels in ((28, None), (None, 3), ((200, 1), 2)):
        with refusal("got 256 points in 2 dimensions each; sets of points are not resized"):
            planes.resized(size, channels)
    assert_refused("not resized", "planes", img_size=28)
    with refusal("holds NaN"):
        point_set(torch.full((1, 2, 4, 1), float("nan")), "mine")
    with refusal(r"with 2 or 3 coordinates, got \[n=1, coordinates=4, points=4, 1=1\]"):
        point_set(torch.zeros(1, 4, 4, 1), "mine")


def test_preprocessing_of_points_is_stored_as_json():
    planes = make_planes(2)
    stored = planes.preprocess(planes.img_size, planes.in_chans)
    assert isinstance(stored, PointPreprocess)
    assert stored.to_dict() == {"img_size": [256, 1], "in_chans": 2, "kind": "points"}
    assert Preprocess.from_dict(json.loads(json.dumps(stored.to_dict()))) == stored


def test_prediction_takes_files_and_arrays(tmp_path):
    preprocess = PointPreprocess((6, 1), 2)
    np.savez(tmp_path / "one.npz", points=SETS[0])
    expected = standardized_points("x", SETS[:1])[0]
    (tmp_path / "photo.png").write_bytes(b"")
    files = [element.source for element in list_inputs(tmp_path, preprocess)]
    assert [Path(file).name for file in files] == ["one.npz"]
    for points in (*files, SETS[0], torch.from_numpy(SETS[0])):
        assert_close(preprocess(points), expected)


def test_prediction_refuses_in_one_sentence(tmp_path):
    preprocess = PointPreprocess((6, 1), 2)
    np.savez(tmp_path / "many.npz", points=SETS)
    np.savez(tmp_path / "other.npz", images=SETS)
    for points, message in (
        (tmp_path / "many.npz", "expected one set of points, got 10; evaluate takes many"),
        (tmp_path / "other.npz", r"expected \[n, points, coordinates\]"),
        (SETS[0, :5], "expected 6 points in 2 dimensions, got 5 points in 2 dimensions each"),
        (3, "expected a file, an array or a tensor, got int"),
    ):
        with refusal(message):
            preprocess(points)
    with refusal("expected img_size"):
        Preprocess.from_dict({"img_size": [6, 1], "in_chans": 2, "kind": "sounds"})

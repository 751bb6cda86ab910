import numpy as np
import pytest
import torch

from torchcaps.data import load_dataset, read_norb, render_synthnorb, split_views
from torchcaps.data.sets import synthnorb as make
from torchcaps.errors import DataError

FEW = {"elevations": (0, 8), "azimuths": (0, 30), "lightings": (0, 4), "size": 16}


def rendered(split="train", **options):
    return render_synthnorb(split, **{**FEW, **options})


@pytest.fixture(scope="module")
def train():
    return rendered()


def test_every_toy_from_every_view_under_every_lamp_once(train):
    assert train.images.shape == (5 * 5 * 2 * 2 * 2, 1, 16, 16)
    known = [
        train.labels,
        *(train.factors[name] for name in ("instance", "elevation", "azimuth", "lighting")),
    ]
    rows = {tuple(int(v) for v in row) for row in zip(*known, strict=True)}
    assert len(rows) == len(train)
    assert [set(values.tolist()) for values in known[1:]] == [
        {4, 6, 7, 8, 9},
        {0, 8},
        {0, 30},
        {0, 4},
    ]


def test_categories_take_turns_as_in_smallnorb(train):
    assert train.labels.tolist() == [i % 5 for i in range(len(train))]
    assert train.classes == ("animal", "human", "airplane", "truck", "car")
    assert train.factors["instance"][:20].tolist() != sorted(
        train.factors["instance"][:20].tolist()
    )


def test_no_toy_is_in_both_splits(train):
    test = rendered("test", elevations=(0,), azimuths=(0,), lightings=(0,))
    assert set(test.factors["instance"].tolist()) == {0, 1, 2, 3, 5}
    assert not set(test.factors["instance"].tolist()) & set(train.factors["instance"].tolist())


def test_a_seed_settles_everything():
    one, two, other = (
        rendered(instances=(2,), azimuths=(0, 6), lightings=(0,), seed=seed) for seed in (0, 0, 1)
    )
    torch.testing.assert_close(one.images, two.images, rtol=0, atol=0)
    assert one.factors["azimuth"].tolist() == two.factors["azimuth"].tolist()
    assert one.factors["azimuth"].tolist() != other.factors["azimuth"].tolist()
    for azimuth in (0, 6):  # the toys themselves differ, not only their order
        at = {"category": 0, "elevation": 0, "azimuth": azimuth}
        assert 0.1 < (picture(one, **at) - picture(other, **at)).abs().mean() < 30


def picture(images, **known):
    mask = torch.ones(len(images), dtype=torch.bool)
    for name, value in known.items():
        mask &= (images.labels if name == "category" else images.factors[name]) == value
    assert mask.sum() == 1
    return images.images[mask][0].float()


def test_every_factor_changes_the_picture(train):
    at = {"category": 3, "instance": 4, "elevation": 0, "azimuth": 0, "lighting": 0}
    base = picture(train, **at)
    for name, value in (
        ("category", 0),
        ("instance", 9),
        ("elevation", 8),
        ("azimuth", 30),
        ("lighting", 4),
    ):
        assert (picture(train, **{**at, name: value}) - base).abs().mean() > 3, name


def test_two_eyes_see_from_six_degrees_apart(monkeypatch):
    one = {"instances": (0,), "elevations": (4,), "azimuths": (2,), "lightings": (0,), "size": 24}
    stereo, mono = render_synthnorb("test", stereo=True, **one), render_synthnorb("test", **one)
    assert stereo.images.shape == (5, 2, 24, 24)
    left, right = stereo.images.float().unbind(dim=1)
    apart = (left - right).abs().mean((1, 2))
    assert (apart > 0.5).all()
    assert ((left - mono.images[:, 0]).abs().mean((1, 2)) < apart).all()
    monkeypatch.setattr(make, "PARALLAX", 0.0)
    same = render_synthnorb("test", stereo=True, **one).images
    torch.testing.assert_close(same, mono.images.expand(-1, 2, -1, -1))


def test_progress_is_told():
    seen = []
    rendered(instances=(4,), progress=lambda *step: seen.append(step))
    assert seen[0][0] == "synthnorb train"
    assert seen[-1][1:] == (40, 40)
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)


@pytest.fixture
def small(monkeypatch):
    """The full set made small: both protocols' codes, one light, few pixels."""
    whole = make.render_synthnorb

    def few(split, progress=None):
        views = {
            "elevations": (0, 4),
            "azimuths": (0, 10),
            "lightings": (0,),
            "instances": make.SPLIT[split][:2],
        }
        return whole(split, **views, size=8, progress=progress)

    monkeypatch.setattr(make, "render_synthnorb", few)


def test_files_are_in_smallnorbs_layout(tmp_path, small):
    make.write_synthnorb(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"{stem}-{kind}.mat" for stem in make.NAMES.values() for kind in ("dat", "cat", "info")
    )
    for split in ("train", "test"):
        read, made = read_norb(tmp_path, split), make.render_synthnorb(split)
        torch.testing.assert_close(read.images, made.images, rtol=0, atol=0)
        assert read.labels.tolist() == made.labels.tolist()
        for name in ("instance", "elevation", "azimuth", "lighting"):
            assert read.factors[name].tolist() == made.factors[name].tolist()
        assert read.group == made.group == "instance"


def test_viewpoint_sets_by_name(tmp_path, small):
    (tmp_path / "synthnorb").mkdir()
    make.write_synthnorb(tmp_path / "synthnorb")
    for by, familiar in (("azimuth", {0}), ("elevation", {0})):
        found = {
            (name, split): load_dataset(
                f"synthnorb-{by}{name}", split, tmp_path, cache_dir=tmp_path / "none"
            )
            for name in ("", "-familiar")
            for split in ("train", "test")
        }
        for (name, split), images in found.items():
            seen = set(images.factors[by].tolist())
            assert (seen == familiar) == (split == "train" or name == "-familiar")
            assert images.name == f"synthnorb-{by}{name}"
        whole = split_views(
            load_dataset("synthnorb", "test", tmp_path, cache_dir=tmp_path / "none"), by
        )
        torch.testing.assert_close(found["", "test"].images, whole.novel.images)


def test_a_folder_that_cannot_be_written(tmp_path, small):
    with pytest.raises(DataError, match="cannot be written"):
        make.write_synthnorb(tmp_path / "absent")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"split": "valid"}, DataError, "split: expected 'train' or 'test', got 'valid'"),
        ({"instances": (10,)}, ValueError, "instances: expected between 0 and 9, got 10"),
        ({"elevations": (9,)}, ValueError, "elevations: expected between 0 and 8, got 9"),
        ({"azimuths": (36,)}, ValueError, "azimuths: expected between 0 and 35, got 36"),
        ({"lightings": ()}, DataError, "lightings: expected at least one, got none"),
        ({"size": 3}, ValueError, "size: expected at least 4, got 3"),
    ],
)
def test_arguments_out_of_range(options, error, words):
    with pytest.raises(error, match=words):
        rendered(**options)


def test_published_codes():
    assert [30 + 5 * code for code in make.ELEVATIONS] == list(range(30, 75, 5))
    assert [10 * code for code in make.AZIMUTHS] == list(range(0, 360, 20))
    assert np.intersect1d(*make.SPLIT.values()).size == 0

import pytest
import torch

from torchcaps.data import (
    _registry,
    fetch_dataset,
    load_dataset,
    render_synthnorb,
    split_views,
)
from torchcaps.data.sets import synthnorb

from ..makers import refusal

FACTORS = ("instance", "elevation", "azimuth", "lighting")


def render(split="train", **options):
    views = {"elevations": (0, 8), "azimuths": (0, 30), "lightings": (0, 4), "size": 16}
    return render_synthnorb(split, **{**views, **options})


@pytest.fixture(scope="module")
def train():
    return render()


def test_every_toy_from_every_view_under_every_lamp_once(train):
    assert train.images.shape == (5 * 5 * 2 * 2 * 2, 1, 16, 16)
    codes = torch.stack([train.labels, *train.targets.values()], dim=1)
    assert len(codes.unique(dim=0)) == len(train)
    assert train.targets["instance"].unique().tolist() == [4, 6, 7, 8, 9]
    assert train.targets["elevation"].unique().tolist() == [0, 8]
    assert train.targets["azimuth"].unique().tolist() == [0, 30]
    assert train.targets["lighting"].unique().tolist() == [0, 4]


def test_categories_take_turns_and_toys_are_shuffled(train):
    assert torch.equal(train.labels, torch.arange(len(train)) % 5)
    assert train.classes == ("animal", "human", "airplane", "truck", "car")
    instances = train.targets["instance"].tolist()
    assert instances != sorted(instances)


def test_no_toy_is_in_both_splits():
    test = render("test", elevations=(0,), azimuths=(0,), lightings=(0,))
    assert set(test.targets["instance"].tolist()) == {0, 1, 2, 3, 5}


def picture(images, **codes):
    """The one image of these codes."""
    is_match = torch.ones(len(images), dtype=torch.bool)
    for name, code in codes.items():
        column = images.labels if name == "category" else images.targets[name]
        is_match &= column == code
    [index] = is_match.nonzero().flatten()
    return images.images[index].float()


def test_a_seed_determines_toys_and_order():
    views = {"instances": (2,), "azimuths": (0, 6), "lightings": (0,)}
    toys = render(**views)
    repeated = render(**views)
    changed = render(**views, seed=1)
    assert torch.equal(toys.images, repeated.images)
    assert torch.equal(toys.targets["azimuth"], repeated.targets["azimuth"])
    assert not torch.equal(toys.targets["azimuth"], changed.targets["azimuth"])
    # The toys themselves differ, not only their order.
    codes = {"category": 0, "elevation": 0, "azimuth": 6}
    difference = picture(toys, **codes) - picture(changed, **codes)
    assert 0.1 < difference.abs().mean() < 30


def test_every_factor_changes_the_picture(train):
    codes = {"category": 3, "instance": 4, "elevation": 0, "azimuth": 0, "lighting": 0}
    changes = {"category": 0, "instance": 9, "elevation": 8, "azimuth": 30, "lighting": 4}
    for name, code in changes.items():
        changed = picture(train, **{**codes, name: code})
        assert (changed - picture(train, **codes)).abs().mean() > 3, name


def test_progress_counts_images():
    steps = []
    render(instances=(4,), progress=lambda *step: steps.append(step))
    assert len(steps) == 5
    assert steps[0] == ("synthnorb train", 0, 40)
    assert steps[-1] == ("synthnorb train", 32, 40)


@pytest.fixture
def small_set(restore, monkeypatch):
    """A set made small: both protocols' codes, one light, few pixels."""
    restore(_registry.DATASETS)

    def render_views(split, progress=None):
        toys = synthnorb.SPLIT[split][:2]
        return render(split, instances=toys, elevations=(0, 4), azimuths=(0, 10), lightings=(0,))

    sha256 = {
        f"toys-rendered-{split}ing-{kind}.mat": None
        for split in synthnorb.SPLIT
        for kind in synthnorb.KINDS
    }
    facts = {"name": "toys", "title": "toys", "train": 40, "test": 40, "sha256": sha256}
    monkeypatch.setattr(synthnorb, "set_facts", {"toys": facts}.get)
    synthnorb.register_rendered("toys", render_views)
    return render_views


def test_viewpoint_sets_by_name(tmp_path, small_set):
    fetch_dataset("toys", tmp_path)

    def load(name, split):
        return load_dataset(name, split, cache_dir=tmp_path)

    for split in ("train", "test"):
        written = load("toys", split)
        rendered = small_set(split)
        assert torch.equal(written.images, rendered.images)
        assert torch.equal(written.labels, rendered.labels)
        for name in FACTORS:
            assert torch.equal(written.targets[name], rendered.targets[name])
        assert torch.equal(written.groups, rendered.groups)
    assert torch.equal(rendered.groups, 100 * rendered.labels + rendered.targets["instance"])
    for by in ("azimuth", "elevation"):
        views = split_views(rendered, by)
        for ending, expected in (("", views.novel), ("-familiar", views.familiar)):
            test = load(f"toys-{by}{ending}", "test")
            assert test.name == f"toys-{by}{ending}"
            assert torch.equal(test.images, expected.images)
            train = load(f"toys-{by}{ending}", "train")
            assert train.targets[by].unique().tolist() == [0]


def test_a_folder_that_cannot_be_written(tmp_path, small_set):
    with refusal("cannot be written"):
        synthnorb.write_matrices(small_set("train"), tmp_path / "absent" / "toys")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"split": "valid"}, "unknown split 'valid'"),
        ({"instances": (10,)}, "instances: expected between 0 and 9, got 10"),
        ({"lightings": ()}, "lightings: expected between 0 and 5, got -1"),
        ({"size": 3}, "size: expected at least 4, got 3"),
    ],
)
def test_arguments_out_of_range(options, words):
    with refusal(words, ValueError):
        render(**options)

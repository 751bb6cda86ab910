"""Sets that the package renders: the same images and points for the same seed, on any machine."""

from dataclasses import replace

import pytest
import torch

from torchcaps.data import (
    _registry,
    fetch_dataset,
    load_dataset,
    make_planes,
    render_shapes,
    verify_dataset,
)
from torchcaps.data.sets import shapes

SHAPE_PIXELS = [6540, 296, 1040, 316]  # of the background and of each class
SHAPE_GRAY = [139.8676, 45.7655, 149.1133]  # mean, deviation, mean of the first image
PLANE_SPREAD = [0.410776, 0.382221]  # along x and y
PLANE_SKEW = -0.0041796


def test_shapes_of_a_seed_are_as_recorded():
    """Rounding differs between processors: means are compared."""
    images = render_shapes(8, 32, seed=3)
    pixels_per_class = torch.bincount(images.targets["mask"].flatten().long(), minlength=4)
    assert pixels_per_class.tolist() == pytest.approx(SHAPE_PIXELS, abs=8)
    gray = images.images.double()
    statistics = [gray.mean().item(), gray.std().item(), gray[0].mean().item()]
    assert statistics == pytest.approx(SHAPE_GRAY, abs=0.05)


def test_shapes_are_fetched_as_they_are_rendered(tmp_path, monkeypatch, restore):
    restore(_registry.DATASETS)
    smaller = replace(shapes.INFO, train=3, test=2)
    monkeypatch.setattr(shapes, "INFO", smaller)
    _registry.register_dataset(smaller, replace=True)(_registry.dataset_reader("shapes"))
    fetch_dataset("shapes", tmp_path)
    assert all(check.ok for check in verify_dataset("shapes", cache_dir=tmp_path))
    for split, count, seed in (("train", 3, 0), ("test", 2, 1)):
        expected = render_shapes(count, seed=seed)
        images = load_dataset("shapes", split, cache_dir=tmp_path)
        assert torch.equal(images.images, expected.images)
        assert torch.equal(images.targets["mask"], expected.targets["mask"])
        assert (images.classes, images.name) == (smaller.classes, "shapes")


def test_planes_of_a_seed_are_as_recorded():
    points = make_planes(4, 64, seed=5).images.double()[..., 0]
    assert points.std(dim=(0, 2)).tolist() == pytest.approx(PLANE_SPREAD, abs=1e-4)
    assert points.pow(3).mean().item() == pytest.approx(PLANE_SKEW, abs=1e-4)

"""Matrix capsules at other sizes than the published ones."""

import math

import pytest
import torch

import torchcaps as tc
from torchcaps.functional import receptive_centers
from torchcaps.models.matrix_caps import LAYERS
from torchcaps.testing import check_module_precision, seeded

TINY = {"channels": 8, "primary_types": 2, "types": (3, 4)}


@pytest.mark.parametrize(
    ("num_classes", "in_chans", "img_size"), [(5, 2, 32), (10, 1, 17), (3, 3, (20, 29)), (1, 1, 18)]
)
def test_any_size(num_classes, in_chans, img_size):
    model = tc.create_model(
        "matrix_caps", num_classes=num_classes, in_chans=in_chans, img_size=img_size, **TINY
    )
    height, width = model.img_size
    capsules = model.capsules(torch.rand(2, in_chans, height, width, generator=seeded()))
    assert capsules.pose.shape == (2, num_classes, 16)
    assert 0.01 < capsules.activation.mean() < 0.99  # starts neither dead nor saturated


def test_maps_and_coordinates_of_the_paper():
    model = tc.create_model("matrix_caps", **TINY)
    with tc.record_routing(model) as record:
        model(torch.rand(2, 2, 32, 32, generator=seeded()))
    shapes = {name: tuple(recorded.coupling.shape) for name, recorded in record.last().items()}
    assert shapes == {
        "conv_capsules.0": (2, 6, 6, 9 * 2, 3),
        "conv_capsules.1": (2, 4, 4, 9 * 3, 4),
        "class_capsules": (2, 4 * 4 * 4, 5),
    }
    centers = model.class_capsules.centers
    assert centers[:, 0, 0, 0, 3].tolist() == pytest.approx(
        [c / 100 for c in receptive_centers(32, LAYERS)]
    )
    assert centers[0, :, 0, 0, 7].tolist() == pytest.approx([-0.08, -0.04, 0.0, 0.04])
    assert tc.create_model("matrix_caps", coordinates=False, **TINY).class_capsules.centers is None


def test_moving_an_image_by_the_total_stride_moves_the_map_by_one():
    """Of the interior: at the border a child has fewer parents, and two iterations carry that a few windows inwards."""
    model = tc.create_model("matrix_caps", img_size=(20, 120), iterations=2, **TINY)
    images = torch.rand(1, 2, 20, 120, generator=seeded())

    def last_map(images):
        return model.conv_capsules(model.primary(torch.relu(model.conv(images))))

    stride = math.prod(stride for _, stride in LAYERS)
    still, moved = last_map(images), last_map(images.roll(stride, dims=3))
    for name in ("pose", "activation"):
        there, here = getattr(moved, name)[:, :, 9:-7], getattr(still, name)[:, :, 8:-8]
        assert here.shape[2] >= 8 and here.std() > 0
        torch.testing.assert_close(there, here, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "options", [{"bias": True}, {"convention": "type"}, {"iterations": 1}, {"impl": "reference"}]
)
def test_options_reach_the_layers(options):
    torch.manual_seed(0)
    model = tc.create_model("matrix_caps", img_size=20, **TINY, **options)
    found = model(torch.rand(2, 2, 20, 20, generator=seeded()))
    assert found.isfinite().all()
    layers = [*model.conv_capsules, model.class_capsules]
    for name, value in options.items():
        if name == "bias":
            assert all(layer.bias is not None for layer in layers)
        elif name == "convention":
            assert all(layer.convention == value for layer in model.conv_capsules)
        else:
            assert all(getattr(layer.router, name) == value for layer in layers)


def test_fast_path_and_reference_agree():
    models = []
    for impl in ("blocked", "reference"):
        torch.manual_seed(0)
        models.append(tc.create_model("matrix_caps", img_size=20, impl=impl, **TINY))
    images = torch.rand(3, 2, 20, 20, generator=seeded())
    gradients = []
    for model in models:
        model(images).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(models[0](images), models[1](images), rtol=1e-4, atol=1e-6)
    assert ((gradients[0] - gradients[1]).norm() / gradients[1].norm()).item() < 1e-3


@pytest.mark.parametrize("img_size", [16, (32, 16)])
def test_too_small(img_size):
    with pytest.raises(
        ValueError,
        match="img_size: expected images of at least",
    ):
        tc.create_model("matrix_caps", img_size=img_size)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="primary_types: expected at least 1, got 0"):
        tc.create_model("matrix_caps", primary_types=0)
    with pytest.raises(ValueError, match="unknown convention"):
        tc.create_model("matrix_caps", convention="al")


def test_standardized_images_in_every_precision():
    model = tc.create_model("matrix_caps", standardized=True, **TINY)
    check_module_precision(model, torch.rand(2, 2, 32, 32, generator=seeded()))

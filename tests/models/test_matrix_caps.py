"""Matrix capsules at other sizes than the published ones."""

import math

import pytest
import torch

import torchcaps as tc
from torchcaps.functional import receptive_centers
from torchcaps.models.matrix_caps import LAYERS
from torchcaps.testing import check_module_precision, seeded

SMALL = {
    "channels": 8,
    "primary_types": 2,
    "types": (3, 4),
}


def make_model(**options):
    return tc.create_model("matrix_caps", **SMALL | options)


def sample_images(model):
    return torch.rand(2, *model.image_shape, generator=seeded())


@pytest.mark.parametrize(
    ("num_classes", "in_chans", "img_size"),
    [
        (10, 1, 17),
        (3, 3, (20, 29)),
        (1, 1, 18),
    ],
)
def test_any_size(num_classes, in_chans, img_size):
    model = make_model(num_classes=num_classes, in_chans=in_chans, img_size=img_size)
    capsules = model.capsules(sample_images(model))
    assert capsules.pose.shape == (2, num_classes, 16)
    assert 0.01 < capsules.activation.mean() < 0.99  # starts neither dead nor saturated


def test_maps_of_the_paper():
    model = make_model()
    with tc.record_routing(model) as record:
        model(sample_images(model))
    recorded = record.last()
    assert recorded["conv_capsules.0"].coupling.shape == (2, 6, 6, 9 * 2, 3)
    assert recorded["conv_capsules.1"].coupling.shape == (2, 4, 4, 9 * 3, 4)
    assert recorded["class_capsules"].coupling.shape == (2, 4 * 4 * 4, 5)


def test_coordinates_of_the_paper():
    centers = make_model().class_capsules.centers
    expected = [center / 100 for center in receptive_centers(32, LAYERS)]
    assert expected == pytest.approx([-0.08, -0.04, 0.0, 0.04])
    assert centers[:, 0, 0, 0, 3].tolist() == pytest.approx(expected)
    assert centers[0, :, 0, 0, 7].tolist() == pytest.approx(expected)
    assert make_model(coordinates=False).class_capsules.centers is None


def last_map(model, images):
    return model.conv_capsules(model.primary(torch.relu(model.conv(images))))


def test_moving_an_image_by_the_total_stride_moves_the_map_by_one():
    """In the interior: a child at the border has fewer parents, and iterations carry that inwards."""
    model = make_model(img_size=(20, 120), iterations=2)
    images = torch.rand(1, 2, 20, 120, generator=seeded())
    stride = math.prod(stride for _, stride in LAYERS)
    capsules = last_map(model, images)
    shifted = last_map(model, images.roll(stride, dims=3))
    for tensor, shifted_tensor in zip(capsules, shifted, strict=True):
        interior = tensor[:, :, 8:-8]
        shifted_interior = shifted_tensor[:, :, 9:-7]
        assert interior.shape[2] >= 8
        assert interior.std() > 0
        torch.testing.assert_close(shifted_interior, interior, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("iterations", 1),
        ("impl", "reference"),
    ],
)
def test_options_reach_every_router(name, setting):
    model = make_model(img_size=20, **{name: setting})
    for layer in (*model.conv_capsules, model.class_capsules):
        assert getattr(layer.router, name) == setting


def test_options_reach_every_layer():
    model = make_model(img_size=20, bias=True, convention="type")
    assert model.class_capsules.bias is not None
    for layer in model.conv_capsules:
        assert layer.bias is not None
        assert layer.convention == "type"
    assert model(sample_images(model)).isfinite().all()


def test_fast_path_and_reference_agree():
    outputs = []
    gradients = []
    for impl in ("blocked", "reference"):
        model = make_model(img_size=20, impl=impl, generator=seeded())
        activation = model(sample_images(model))
        activation.sum().backward()
        outputs.append(activation)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-6)
    error = (gradients[0] - gradients[1]).norm() / gradients[1].norm()
    assert error.item() < 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"img_size": 16}, "img_size: expected images of at least"),
        ({"img_size": (32, 16)}, "img_size: expected images of at least"),
        ({"primary_types": 0}, "primary_types: expected at least 1, got 0"),
        ({"convention": "al"}, "unknown convention"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        make_model(**options)


def test_standardized_images_in_every_precision():
    model = make_model(standardized=True)
    check_module_precision(model, sample_images(model))

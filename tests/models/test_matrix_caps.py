"""Matrix capsules at other sizes than the published ones."""

import pytest

from torchcaps.functional import receptive_centers
from torchcaps.models.matrix_caps import LAYERS

from .small import sample_images, small_model


def test_coordinates_of_the_paper():
    centers = small_model("matrix_caps", img_size=32).class_capsules.centers
    expected = [center / 100 for center in receptive_centers(32, LAYERS)]
    assert expected == pytest.approx([-0.08, -0.04, 0.0, 0.04])
    assert centers[:, 0, 3].tolist() == pytest.approx(expected)
    assert centers[0, :, 7].tolist() == pytest.approx(expected)
    assert small_model("matrix_caps", coordinates=False).class_capsules.centers is None


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("iterations", 1),
        ("impl", "reference"),
    ],
)
def test_options_reach_every_router(name, setting):
    model = small_model("matrix_caps", img_size=20, **{name: setting})
    for layer in (*model.conv_capsules, model.class_capsules):
        assert getattr(layer.router, name) == setting


def test_options_reach_every_layer():
    model = small_model("matrix_caps", img_size=20, bias=True, convention="type")
    assert model.class_capsules.bias is not None
    for layer in model.conv_capsules:
        assert layer.bias is not None
        assert layer.convention == "type"
    assert model(sample_images(model)).isfinite().all()

"""Capsules routed by variational Bayes, at other sizes than the published ones."""

import pytest

import torchcaps as tc

SMALL = {
    "channels": 8,
    "primary_types": 2,
    "types": (3, 4),
}
ROUTING_OPTIONS = {
    "covariance": "full",
    "outlier": -25.33,
    "weighted": True,
    "iterations": 1,
}


def make_model(**options):
    return tc.create_model("vb_caps", **SMALL | options)


def test_coordinates_of_the_authors_code():
    centers = make_model().class_capsules.centers
    expected = pytest.approx([0.025, 0.05, 0.075, 0.1])
    assert centers[:, 0, 3].tolist() == expected
    assert centers[0, :, 7].tolist() == expected


def test_options_reach_every_router():
    model = make_model(img_size=20, **ROUTING_OPTIONS)
    for layer in (*model.conv_capsules, model.class_capsules):
        for name, setting in ROUTING_OPTIONS.items():
            assert getattr(layer.router, name) == setting

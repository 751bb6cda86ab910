"""Capsules routed by variational Bayes, at other sizes than the published ones."""

import pytest

from .small import small_model

ROUTING_OPTIONS = {
    "covariance": "full",
    "outlier": -25.33,
    "weighted": True,
    "iterations": 1,
}


def test_coordinates_of_the_authors_code():
    centers = small_model("vb_caps", img_size=32).class_capsules.centers
    expected = pytest.approx([0.025, 0.05, 0.075, 0.1])
    assert centers[:, 0, 3].tolist() == expected
    assert centers[0, :, 7].tolist() == expected


def test_options_reach_every_router():
    model = small_model("vb_caps", img_size=20, **ROUTING_OPTIONS)
    for layer in (*model.conv_capsules, model.class_capsules):
        for name, setting in ROUTING_OPTIONS.items():
            assert getattr(layer.router, name) == setting

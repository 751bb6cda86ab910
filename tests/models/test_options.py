"""Sizes, options and constants of the models, in tables over all of them."""

import pytest
import torch
from torch import nn

from torchcaps.errors import ArgumentError
from torchcaps.testing import check_module

from .small import SMALL, sample_images, small_model

SIZED = [name for name in SMALL if name not in ("canonical_capsules", "cnn_matched")]


@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize(("in_chans", "extra"), [(3, (7, 20)), (1, (1, 0))])
def test_any_size(name, in_chans, extra):
    """Whole rectangles, and a map that strides do not divide; activations neither 0 nor 1."""
    side = small_model(name).spec.smallest
    side = max(side, 12)
    img_size = (side + extra[0], side + extra[1])
    # Loops for layers of this size are compiled for seconds.
    options = {"impl": "reference"} if name == "matrix_caps" else {}
    model = small_model(name, in_chans=in_chans, img_size=img_size, **options)
    images = sample_images(model)
    activation = model(images)
    assert activation.isfinite().all()
    if model.spec.task == "transform":
        assert activation.shape == images.shape
        return
    assert 1e-3 < activation.mean() < 0.99
    if model.spec.decoder:
        assert model.reconstruct(model.capsules(images)).shape == images.shape


@pytest.mark.parametrize("name", [name for name in SIZED if name != "tree_capsnet"])
def test_one_class(name):
    num_classes = 2 if small_model(name).spec.is_dense else 1
    model = small_model(name, num_classes=num_classes)
    assert model(sample_images(model)).isfinite().all()


@pytest.mark.parametrize("name", SIZED)
def test_the_smallest_image(name):
    side = small_model(name).spec.smallest
    model = small_model(name, img_size=side)
    assert model(sample_images(model)).isfinite().all()
    if side > 1:
        message = f"img_size: expected images of at least {side}x{side} pixels, got "
        with pytest.raises(ArgumentError, match=message):
            small_model(name, img_size=(side, side - 1))


FOUR_NUMBERS = r"stem: expected \(kernel, stride, channels, padding below half a kernel\), got "
LAST_CHANNELS = "stem: expected a multiple of 8 as the last channels, got "
BRANCHES = "branches: expected rising numbers from 1 to 3"
REFUSALS = [
    ("affcaps", {"share": "some"}, "unknown share 'some'"),
    ("affcaps", {"constant": "1/C"}, "unknown constant '1/C'"),
    ("canonical_capsules", {"in_chans": 4}, r"in_chans \(.*\): expected between 2 and 3, got 4"),
    ("canonical_capsules", {"img_size": (12, 2)}, r"expected \(3 or more points, 1\), got \(12, 2"),
    ("canonical_capsules", {"img_size": (2, 1)}, r"expected \(3 or more points, 1\), got \(2, 1"),
    ("cnn_baseline", {"channels": (4, 0)}, "channels: expected at least 1, got 0"),
    ("cnn_baseline", {"kernels": (4, 3)}, "kernels: expected odd sizes, got 4, 3"),
    ("cnn_baseline", {"kernels": (5,)}, "kernels: expected one for each of 2 convolutions, got 1"),
    ("cnn_baseline", {"dropout": 1.0}, "dropout: expected between 0.0 and 0.99, got 1.0"),
    ("cnn_matched", {"match": "capsnt"}, "unknown model 'capsnt'; did you mean 'capsnet'"),
    ("cnn_matched", {"match": "cnn_matched"}, "model: expected a capsule network, got 'cnn_m"),
    ("cnn_matched", {"match": "resnet20"}, "model: expected a capsule network, got a CNN"),
    ("cnn_matched", {"chanels": 3}, "chanels"),
    ("deepcaps", {"dims": (2, 3, 4, 5)}, r"dims: expected 4 numbers .* the last two alike, got"),
    ("deepcaps", {"types": 0}, "types: expected at least 1, got 0"),
    ("efficient_capsnet", {"norm": "layer"}, "unknown norm 'layer'"),
    ("efficient_capsnet", {"decoder": "flat"}, "unknown decoder 'flat'"),
    ("efficient_capsnet", {"slope": -1.0}, "slope: expected between 0 and 1, got -1"),
    ("efficient_capsnet", {"stem": [[5, 2], [3, 1]]}, FOUR_NUMBERS + r"\[5, 2\]"),
    ("efficient_capsnet", {"stem": [[3, 1, 8, 2]]}, FOUR_NUMBERS + r"\[3, 1, 8, 2\]"),
    ("efficient_capsnet", {"stem": [[5, 2], [3, 1], [3, 1], [3, 2, 12]]}, LAST_CHANNELS),
    ("efficient_capsnet", {"stem": []}, LAST_CHANNELS),
    *(("hvc", {"branches": branches}, BRANCHES) for branches in ((), (0, 1), (2, 4), (3, 1))),
    ("hvc", {"branches": (2, 2)}, BRANCHES),
    ("hvc", {"merge": "sum"}, "unknown merge 'sum'"),
    (
        "inverted_attention",
        {"backbone": "resnt"},
        "unknown backbone 'resnt'; did you mean 'resnet'",
    ),
    ("inverted_attention", {"iterations": 0}, "iterations: expected at least 1, got 0"),
    ("matrix_caps", {"primary_types": 0}, "primary_types: expected at least 1, got 0"),
    ("matrix_caps", {"convention": "al"}, "unknown convention"),
    ("resnet20", {"width": 0}, "width: expected at least 1, got 0"),
    ("resnet20", {"num_classes": 0}, "num_classes: expected at least 1, got 0"),
    ("resnet20", {"shortcut": "C"}, "unknown shortcut 'C'; known: A, B"),
    ("scae", {"parts": 0}, "parts: expected at least 1, got 0"),
    ("scae", {"pixel_scale": 0.0}, "pixel_scale: expected at least"),
    ("scae", {"strides": (2, 0)}, "strides: expected at least 1, got 0"),
    ("scae", {"weights": {"pixel": 1.0}}, "unknown weight 'pixel'; did you mean 'pixels'"),
    ("scae", {"weights": {"poses": -1.0}}, "poses: expected at least 0"),
    ("scae", {"weights": 3}, "weights: expected numbers by name, got 3"),
    ("segcaps", {"num_classes": 1}, "num_classes: expected at least 2, got 1"),
    ("sr_capsnet", {"img_size": 16, "backbone": "convnet"}, "img_size: .* at least 17x17 pixels"),
    ("sr_capsnet", {"depth": 3}, "depth: expected between 1 and 2, got 3"),
    ("sr_capsnet", {"head": "em", "dim": 5}, "sizes: expected poses of P x P numbers"),
    ("sr_capsnet", {"uniform": True, "depth": 1}, "uniform: expected depth 2, for the couplings"),
    ("sr_capsnet", {"types": 0}, "types: expected at least 1, got 0"),
    ("sr_capsnet", {"head": "linaer"}, "unknown head 'linaer'; did you mean 'linear'"),
    ("sr_capsnet", {"backbone": "resnet"}, "unknown backbone 'resnet'; did you mean 'resnet20'"),
    ("transforming_autoencoder", {"pose": "afine"}, "unknown pose 'afine'; did you mean 'affine'"),
    ("transforming_autoencoder", {"constrained": True}, "constrained: expected affine poses, got"),
    ("transforming_autoencoder", {"generation": 0}, "generation: expected at least 1, got 0"),
    ("tree_capsnet", {"tree": "lables"}, "unknown tree 'lables'; did you mean 'labels'"),
    ("tree_capsnet", {"num_classes": 5}, "classes: expected a name for each of 5, got 3"),
    ("tree_capsnet", {"channels": (4, 6, 8)}, "channels: expected .* a multiple of 16, got"),
    ("tree_capsnet", {"channels": (4, 16)}, "channels: expected three numbers"),
    ("tree_capsnet", {"class_dim": 30}, "class_dim: expected 16, as two primary capsules have"),
    ("tree_capsnet", {"iterations": 0}, "iterations: expected at least 1, got 0"),
    ("unet", {"num_classes": 1}, "num_classes: expected at least 2, got 1"),
    ("vb_caps", {"types": (3,)}, r"types: expected 2 numbers or none, got \[3\]"),
    ("vb_caps", {"types": (0, 3)}, "types: expected at least 1, got 0"),
    ("vb_caps", {"convolutions": 0}, "convolutions: expected at least 1, got 0"),
]


@pytest.mark.parametrize(("name", "options", "message"), REFUSALS)
def test_options_that_are_refused(name, options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        small_model(name, **options)


VB_OPTIONS = {"covariance": "full", "outlier": -25.33, "weighted": True, "iterations": 1}
VARIANTS = [
    ("cnn_baseline", {"multilabel": True}),
    ("cnn_baseline", {"pool": False}),
    ("deepcaps", {"local": True}),
    ("deepcaps", {"iterations": 1}),
    ("deepcaps", {"decoder": False}),
    ("matrix_caps", {"standardized": True, "img_size": 32, "impl": "blocked"}),
    ("resnet20", {"multilabel": True}),
    ("resnet20", {"shortcut": "B"}),
    ("resnet20", {"standardized": True}),
    ("sr_capsnet", {"depth": 1}),
    ("sr_capsnet", {"head": "dynamic", "depth": 1}),
    ("sr_capsnet", {"head": "dynamic"}),
    ("sr_capsnet", {"head": "em", "depth": 1}),
    ("sr_capsnet", {"head": "em"}),
    ("vb_caps", VB_OPTIONS),
    ("vb_caps", {"convolutions": 3, "convention": "type", "standardized": True}),
    ("vb_caps", {"types": ()}),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_variants_keep_every_property(name, options):
    model = small_model(name, **options)
    with torch.no_grad():  # a step of statistics: fresh ones do not norm anything
        model.train()(sample_images(model, 16))
    check_module(model.eval(), sample_images(model, 3), unused=("decoder",))


# Of norms: what is added to the variance, and the share of a batch in running statistics (None of
# those that have none).
NORMS = {
    "canonical_capsules": {(1e-5, 0.1)},
    "capsule_head": {(1e-5, 0.1), (1e-5, None)},
    "deepcaps": {(1e-5, 0.1), (1e-5, 0.2)},
    "efficient_capsnet": {(1e-3, 0.1)},
    "efficient_capsnet_smallnorb": {(1e-3, 0.1)},
    "heinsen": {(1e-5, 0.1), (1e-5, None)},
    "heinsen_2019": {(1e-5, 0.1)},
    "hvc": {(1e-3, 0.1)},
    "inverted_attention": {(1e-5, None)},
    "linear_head": {(1e-5, 0.1)},
    "resnet20": {(1e-5, 0.1)},
    "scae": {(1e-5, None)},
    "sr_capsnet": {(1e-5, 0.1)},
    "vb_caps": {(1e-5, 0.1)},
}
# Numbers that parameters start from, by the ends of their names.
STARTS = [
    ("capsule_head", "class_capsules.votes.bias", 0.1),
    ("deepcaps", "skip.votes.bias", 0.1),
    ("efficient_capsnet", "stem.0.bias", 0.0),
    ("efficient_capsnet", "router.prior", 0.0),
    ("heinsen", "router.B_S", 0.0),
    ("heinsen_2019", "router.B", 0.0),
    ("hvc", "norm.bias", 0.0),
    ("matrix_caps", "router.beta_u", 0.0),
    ("matrix_caps", "router.beta_a", -1.0),
    ("scae", "part_capsules.alpha", 0.0),
    ("scae", "object_capsules.output_bias", 0.0),
    ("segcaps", "votes.bias", 0.1),
    ("transforming_autoencoder", "bias.recognize", 0.0),
]
# Slopes of leaky units and shares that are dropped, by the class of the module.
RATES = {
    "cnn_baseline": {"Dropout": 0.5},
    "cnn_matched": {"Dropout": 0.5},
    "efficient_capsnet_smallnorb": {"LeakyReLU": 0.3},
}


@pytest.mark.parametrize("name", SMALL)
def test_constants_that_no_forward_pass_of_a_fresh_model_shows(name):
    norms = set()
    rates = {}
    for module in small_model(name).modules():
        if hasattr(module, "eps"):
            norms.add((module.eps, getattr(module, "momentum", None)))
        if isinstance(module, nn.LeakyReLU):
            rates["LeakyReLU"] = module.negative_slope
        if isinstance(module, nn.Dropout):
            rates["Dropout"] = module.p
    assert norms == NORMS.get(name, set())
    assert rates == RATES.get(name, {})


@pytest.mark.parametrize(("name", "ending", "start"), STARTS)
def test_parameters_that_start_from_one_number(name, ending, start):
    parameters = dict(small_model(name).named_parameters())
    matching = [parameter for key, parameter in parameters.items() if key.endswith(ending)]
    assert matching
    for parameter in matching:
        torch.testing.assert_close(parameter, torch.full_like(parameter, start))


def test_norms_take_the_momentum_that_is_asked_for():
    model = small_model("efficient_capsnet", norm_options={"momentum": 0.01})
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    assert {(norm.eps, norm.momentum) for norm in norms} == {(1e-3, 0.01)}

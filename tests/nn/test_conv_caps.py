"""Layers of matrix capsules: their votes, what is shared, and what is counted."""

import pytest
import torch
from torch.testing import assert_close

import torchcaps as tc
from torchcaps import testing
from torchcaps.functional import ConvField, em_routing
from torchcaps.nn import (
    CapsuleLinear,
    ClassCaps,
    ConvCaps,
    EMRouting,
    MatrixPrimaryCaps,
    TransposedConvCaps,
    use_generator,
)
from torchcaps.testing import seeded
from torchcaps.types import Capsules

SOFT = {"iterations": 2, "inverse_temperature": 0.5}


def matrix_capsules(batch=2, height=6, width=6, types=2, dim=16):
    generator = seeded()
    pose = torch.randn(batch, height, width, types, dim, generator=generator)
    return Capsules(pose, torch.rand(pose.shape[:-1], generator=generator))


def test_primary_capsules_are_a_linear_pose_and_a_sigmoid_activation():
    layer = MatrixPrimaryCaps(5, 3)
    x = torch.randn(2, 5, 4, 6)
    capsules = layer(x)
    assert capsules.pose.shape == (2, 4, 6, 3, 16)
    pixel = x[1, :, 2, 3]
    channels = layer.pose.weight[:, :, 0, 0] @ pixel
    assert_close(capsules.pose[1, 2, 3, 2], channels[32:48])
    logit = layer.activation.weight[2, :, 0, 0] @ pixel
    assert_close(capsules.activation[1, 2, 3, 2], torch.sigmoid(logit))


@pytest.mark.parametrize("impl", ["blocked", "reference"])
def test_shifting_the_map_by_the_stride_shifts_the_parents(impl):
    """Each iteration reaches one window further: the border, with fewer parents, is left out."""
    children = matrix_capsules(height=5, width=19)
    shifted = Capsules(children.pose.roll(2, dims=2), children.activation.roll(2, dims=2))
    layer = ConvCaps(2, 3, 3, 2, impl=impl, **SOFT)
    shifted_parents = layer(shifted)
    parents = layer(children)
    for after, before in zip(shifted_parents, parents, strict=True):
        assert_close(
            after[:, :, 4:-2],
            before[:, :, 3:-3],
            atol=1e-5,
            rtol=1e-4,
        )
    by_type = ConvCaps(2, 3, 3, 2, convention="type", impl=impl)
    assert_close(by_type(shifted).pose[:, :, 1:], by_type(children).pose[:, :, :-1])


def test_recorded_couplings_of_a_convolution_sum_to_one_over_all_parents():
    layer = ConvCaps(2, 3, 3, 2)
    with tc.record_routing(layer) as record:
        layer(matrix_capsules(height=8, width=8))
    coupling = record[""][-1].coupling
    assert coupling.shape == (2, 3, 3, 18, 3)
    sums = ConvField(8, 8, 3, 2).scatter(coupling.sum(dim=-1))
    expected = torch.zeros(8, 8)
    expected[:7, :7] = 1  # the last row and column belong to no window
    assert_close(sums, expected[None, :, :, None].expand_as(sums))


@pytest.mark.parametrize("bias", [False, True])
def test_a_bias_distinguishes_poses_from_their_negatives(bias):
    """Without one, a stack gives the same activations for negative poses (arXiv 1905.08744)."""
    children = matrix_capsules()
    negative = Capsules(-children.pose, children.activation)
    # A Gaussian moves along with a vector added to all of its votes: one layer does not suffice.
    first = ConvCaps(2, 3, bias=bias, inverse_temperature=1.0)
    assert_close(first(negative).activation, first(children).activation)
    stack = torch.nn.Sequential(first, ConvCaps(3, 2, bias=bias, inverse_temperature=1.0))
    activation = stack(children).activation
    is_symmetric = torch.allclose(stack(negative).activation, activation, atol=1e-5)
    assert is_symmetric is not bias


def test_costs_belong_to_parent_types_and_lambda_scales_the_second():
    layer = ConvCaps(2, 3, inverse_temperature=0.02)
    assert layer.router.beta_u.shape == layer.router.beta_a.shape == (3,)
    assert EMRouting().beta_u.shape == (1,)
    layer.router.beta_a.data.fill_(1.5)
    children = Capsules(matrix_capsules().pose, torch.zeros(2, 6, 6, 2))  # no data: beta_a alone
    activation = layer(children).activation
    expected = torch.sigmoid(torch.tensor(1.5)).expand(2, 4, 4, 3)
    assert_close(activation, expected)


def test_em_in_a_linear_layer():
    layer = CapsuleLinear(6, 4, 3, 5, "em", bias=True, **SOFT)
    pose = torch.randn(2, 6, 4, generator=seeded())
    children = Capsules(pose, torch.rand(2, 6, generator=seeded(1)))
    votes = tc.functional.linear_votes(pose, layer.weight) + layer.bias
    router = layer.router
    beta_a = router.beta_a / router.inverse_temperature[-1]
    expected = em_routing(votes, children.activation, router.beta_u, beta_a, 2, 0.5)
    parents = layer(children)
    assert_close(parents.pose, expected.pose)
    assert_close(parents.activation, expected.activation)


@pytest.mark.parametrize("convention", ["all", "type"])
@pytest.mark.parametrize(
    ("layer_class", "kernel", "stride"),
    [(ConvCaps, 3, 1), (ConvCaps, 5, 2), (TransposedConvCaps, 4, 2), (TransposedConvCaps, 3, 1)],
)
def test_vector_capsules_start_with_parents_that_learn(layer_class, kernel, stride, convention):
    """Children of length 0.1 give sums of length 0.4, so lengths of 0.14, in every field."""
    options = {"routing": "uniform", "pose_size": (8, 16), "convention": convention}
    with use_generator(seeded(3)):
        layer = layer_class(16, 8, kernel, stride, **options)
    directions = torch.randn(2, 11, 11, 16, 8, generator=seeded())
    pose = torch.nn.functional.normalize(directions, dim=-1) / 10
    lengths = layer(Capsules(pose, torch.full((2, 11, 11, 16), 0.1))).activation
    edge = lengths.shape[1] // 3
    assert 0.08 < lengths[:, edge:-edge, edge:-edge].mean() < 0.2


@pytest.mark.parametrize(
    "layer",
    [
        ConvCaps(2, 3),
        ConvCaps(2, 3, 3, 2, iterations=2, bias=True),
        ConvCaps(2, 3, convention="space"),
        ConvCaps(2, 3, impl="reference"),
        # Loops are compiled for more weights, which takes seconds.
        ClassCaps(2, 3, centers=([k / 10 for k in range(4)],) * 2, bias=True, iterations=1),
    ],
    ids=["conv", "stride", "space", "reference", "class"],
)
def test_properties(layer):
    side = 4 if isinstance(layer, ClassCaps) else 6
    testing.check_module(layer, matrix_capsules(3, side, side))


def test_properties_of_primary_capsules():
    images = torch.randn(3, 5, 4, 6, generator=seeded())
    testing.check_module(MatrixPrimaryCaps(5, 3), images)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ConvCaps(3, 2)(matrix_capsules()), r"children: expected .*types=3, dim=16\]"),
        (
            lambda: ClassCaps(2, 3, centers=([0, 0], [0, 0, 0]))(matrix_capsules()),
            "children: expected .*height=2, width=3, types=2",
        ),
        (lambda: ConvCaps(2, 3, 7)(matrix_capsules()), "height: expected at least 7, got 6"),
        (lambda: ConvCaps(2, 3, convention="al"), "unknown convention 'al'"),
        (lambda: ConvCaps(2, 3, 3, 0), "stride: expected at least 1, got 0"),
        (lambda: ConvCaps(2, 0), "out_types: expected at least 1, got 0"),
        (lambda: EMRouting(0), "iterations: expected at least 1, got 0"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_fewer_iterations_of_em_keep_the_effective_cost():
    """The learned cost is a multiple of the last inverse temperature."""
    router = EMRouting(3, inverse_temperature=(1.0, 2.0, 4.0), beta_a=3.0)
    shorter = router.with_iterations(2)
    assert shorter.inverse_temperature == (1.0, 2.0)
    assert shorter.beta_a.item() / 2.0 == router.beta_a.item() / 4.0
    assert router.with_iterations(3).beta_a.item() == router.beta_a.item() == 3.0

"""Layers of matrix capsules: what votes where, what is shared, and what is counted."""

import pytest
import torch

import torchcaps as tc
from torchcaps import testing
from torchcaps.functional import ConvField, ProductVotes, em_routing, matrix_votes
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


def matrix_capsules(batch=2, height=6, width=6, types=2, dim=16, dtype=torch.float32):
    generator = seeded()
    pose = torch.randn(batch, height, width, types, dim, generator=generator, dtype=dtype)
    return Capsules(pose, torch.rand(pose.shape[:-1], generator=generator, dtype=dtype))


def test_primary_capsules_are_a_linear_pose_and_a_sigmoid_activation():
    layer = MatrixPrimaryCaps(5, 3)
    x = torch.randn(2, 5, 4, 6)
    capsules = layer(x)
    assert capsules.pose.shape == (2, 4, 6, 3, 16)
    channels = layer.pose.weight[:, :, 0, 0] @ x[1, :, 2, 3]
    torch.testing.assert_close(capsules.pose[1, 2, 3, 2], channels[32:48])
    logit = layer.activation.weight[2, :, 0, 0] @ x[1, :, 2, 3]
    torch.testing.assert_close(capsules.activation[1, 2, 3, 2], torch.sigmoid(logit))


def test_a_convolution_votes_by_one_matrix_for_each_place_in_the_window():
    layer = ConvCaps(2, 3, 3, 2, iterations=2, inverse_temperature=0.5, bias=True)
    children = matrix_capsules(height=7, width=5)
    windows = ConvField(7, 5, 3, 2)
    votes = matrix_votes(windows.gather(children.pose), layer.weight) + 0.1
    patch = votes[1, 2, 1].unflatten(0, (3, 3, 2))
    by_hand = (
        children.pose[1, 4 + 1, 2 + 2, 1].view(4, 4)
        @ layer.weight.view(3, 3, 2, 3, 4, 4)[1, 2, 1, 0]
    )
    torch.testing.assert_close(patch[1, 2, 1, 0], by_hand.flatten() + 0.1)
    beta_a = layer.router.beta_a / layer.router.inverse_temperature[-1]
    lazy = ProductVotes(children, windows, layer.weight, bias=layer.bias)
    torch.testing.assert_close(lazy.dense() + layer.bias, votes)
    expected = em_routing(lazy, None, layer.router.beta_u, beta_a, 2, 0.5)
    parents = layer(children)
    assert parents.pose.shape == (2, 3, 2, 3, 16)
    torch.testing.assert_close(parents.pose, expected.pose)
    torch.testing.assert_close(parents.activation, expected.activation)


@pytest.mark.parametrize("impl", ["blocked", "reference"])
def test_shifting_the_map_by_the_stride_shifts_the_parents(impl):
    """Each iteration reaches one window further: the border, where a child has fewer parents, stays out of sight."""
    layer = ConvCaps(2, 3, 3, 2, iterations=2, inverse_temperature=0.5, impl=impl)
    children = matrix_capsules(height=5, width=19)
    moved = layer(Capsules(*(t.roll(2, dims=2) for t in children)))
    still = layer(children)
    torch.testing.assert_close(moved.pose[:, :, 4:-2], still.pose[:, :, 3:-3], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(
        moved.activation[:, :, 4:-2], still.activation[:, :, 3:-3], atol=1e-5, rtol=1e-4
    )
    by_type = ConvCaps(2, 3, 3, 2, convention="type", impl=impl)
    moved = by_type(Capsules(*(t.roll(2, dims=2) for t in children)))
    torch.testing.assert_close(moved.pose[:, :, 1:], by_type(children).pose[:, :, :-1])


def test_recorded_couplings_of_a_convolution_sum_to_one_over_all_parents():
    layer = ConvCaps(2, 3, 3, 2)
    with tc.record_routing(layer) as record:
        layer(matrix_capsules(height=8, width=8))
    coupling = record[""][-1].coupling
    assert coupling.shape == (2, 3, 3, 18, 3)
    windows = ConvField(8, 8, 3, 2)
    shares = windows.scatter(coupling.sum(dim=-1))
    reached = torch.zeros(8, 8)
    reached[:7, :7] = 1  # the last row and column belong to no window
    torch.testing.assert_close(shares, reached[None, :, :, None].expand_as(shares))


def test_conventions_differ():
    children, layer = matrix_capsules(), ConvCaps(2, 3)
    poses = []
    for convention in ("all", "type", "space", "patch"):
        other = ConvCaps(2, 3, convention=convention)
        other.load_state_dict(layer.state_dict())
        poses.append(other(children).pose)
    assert all((poses[k] - poses[0]).abs().max() > 1e-3 for k in (1, 2, 3))


def test_class_capsules_share_matrices_and_add_coordinates():
    centers = ([-0.5, 0.5], [0.0, 0.25, 0.75])
    layer = ClassCaps(2, 3, centers=centers, iterations=2, inverse_temperature=0.5)
    assert layer.weight.shape == (2, 3, 4, 4)
    children = matrix_capsules(height=2, width=3)
    votes = matrix_votes(children.pose, layer.weight)  # [batch, height, width, types, classes, 16]
    for y, row in enumerate(centers[0]):
        for x, column in enumerate(centers[1]):
            votes[:, y, x, :, :, 3] += row
            votes[:, y, x, :, :, 7] += column
    beta_a = layer.router.beta_a / layer.router.inverse_temperature[-1]
    expected = em_routing(
        votes.flatten(1, 3), children.activation.flatten(1), layer.router.beta_u, beta_a, 2, 0.5
    )
    parents = layer(children)
    torch.testing.assert_close(parents.pose, expected.pose)
    torch.testing.assert_close(parents.activation, expected.activation)
    assert "centers" not in layer.state_dict()  # they follow from the sizes


def test_class_capsules_without_coordinates_do_not_see_places():
    layer, children = ClassCaps(2, 3), matrix_capsules(height=3, width=4)
    turned = Capsules(*(t.flip(1) for t in children))
    torch.testing.assert_close(layer(turned).pose, layer(children).pose)
    placed = ClassCaps(2, 3, centers=([-1.0, 0.0, 1.0], [0.0] * 4))
    assert (placed(turned).pose - placed(children).pose).abs().max() > 1e-3


def test_a_bias_tells_poses_from_their_negatives():
    """Without one, a stack gives the same activations when all poses are negated (arXiv 1905.08744)."""
    children = matrix_capsules()
    negative = Capsules(-children.pose, children.activation)
    for bias in (False, True):
        # A Gaussian moves along with a vector added to all of its votes: the first layer alone does not tell either.
        first = ConvCaps(2, 3, bias=bias, inverse_temperature=1.0)
        torch.testing.assert_close(first(negative).activation, first(children).activation)
        stack = torch.nn.Sequential(first, ConvCaps(3, 2, bias=bias, inverse_temperature=1.0))
        same = torch.allclose(stack(negative).activation, stack(children).activation, atol=1e-5)
        assert same is not bias


def test_costs_belong_to_parent_types_and_lambda_scales_the_second():
    layer = ConvCaps(2, 3, inverse_temperature=0.02)
    assert layer.router.beta_u.shape == layer.router.beta_a.shape == (3,)
    layer.router.beta_a.data.fill_(1.5)
    children = Capsules(
        matrix_capsules().pose, torch.zeros(2, 6, 6, 2)
    )  # no data: nothing but beta_a
    torch.testing.assert_close(
        layer(children).activation, torch.sigmoid(torch.tensor(1.5)).expand(2, 4, 4, 3)
    )


def test_em_in_a_linear_layer():
    layer = CapsuleLinear(6, 4, 3, 5, "em", bias=True, iterations=2, inverse_temperature=0.5)
    children = Capsules(
        torch.randn(2, 6, 4, generator=seeded()), torch.rand(2, 6, generator=seeded(1))
    )
    votes = tc.functional.linear_votes(children.pose, layer.weight) + layer.bias
    expected = em_routing(votes, children.activation, 0.0, 0.0, 2, 0.5)
    torch.testing.assert_close(layer(children).pose, expected.pose)
    torch.testing.assert_close(layer(children).activation, expected.activation)
    assert layer.router.beta_u.shape == (3,)
    assert EMRouting().beta_u.shape == (1,)


@pytest.mark.parametrize("convention", ["all", "type"])
@pytest.mark.parametrize(
    ("kind", "kernel", "stride"),
    [(ConvCaps, 3, 1), (ConvCaps, 5, 2), (TransposedConvCaps, 4, 2), (TransposedConvCaps, 3, 1)],
)
def test_vector_capsules_start_with_parents_that_learn(kind, kernel, stride, convention):
    """Children of length 0.1 give sums of length 0.4, so lengths of 0.14, whatever the field and who competes."""
    with use_generator(seeded(3)):
        layer = kind(
            16, 8, kernel, stride, routing="uniform", pose_size=(8, 16), convention=convention
        )
    pose = (
        torch.nn.functional.normalize(torch.randn(2, 11, 11, 16, 8, generator=seeded()), dim=-1)
        / 10
    )
    lengths = layer(Capsules(pose, torch.full((2, 11, 11, 16), 0.1))).activation
    edge = lengths.shape[1] // 3  # parents in the middle
    assert 0.08 < lengths[:, edge:-edge, edge:-edge].mean() < 0.2


CHECKS = [
    testing.check_module_rows,
    testing.check_module_copies,
    testing.check_module_zeros,
    testing.check_module_precision,
    testing.check_module_parameters,
]
LAYERS = {
    "conv": lambda: ConvCaps(2, 3),
    "stride": lambda: ConvCaps(2, 3, 3, 2, iterations=2, bias=True),
    "type": lambda: ConvCaps(2, 3, convention="type"),
    "space": lambda: ConvCaps(2, 3, convention="space"),
    "reference": lambda: ConvCaps(2, 3, impl="reference"),
    "class": lambda: ClassCaps(2, 3),
    "coordinates": lambda: ClassCaps(
        2, 3, centers=([k / 10 for k in range(6)],) * 2, bias=True, iterations=1
    ),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_properties(name, check):
    check(LAYERS[name](), matrix_capsules(3))


@pytest.mark.parametrize(
    "layer",
    [
        lambda: ConvCaps(1, 2, 2, pose_size=2, iterations=2, inverse_temperature=0.5, bias=True),
        lambda: ClassCaps(1, 2, pose_size=2, iterations=2, inverse_temperature=0.5),
    ],
    ids=["conv", "class"],
)
def test_gradients(layer):
    testing.check_module_gradients(layer(), matrix_capsules(1, 3, 2, types=1, dim=4))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_properties_of_primary_capsules(check):
    check(MatrixPrimaryCaps(5, 3), torch.randn(3, 5, 4, 6, generator=seeded()))


def test_wrong_arguments():
    children = matrix_capsules()
    with pytest.raises(
        ValueError, match=r"children: expected \[batch, height, width, types=3, dim=16\]"
    ):
        ConvCaps(3, 2)(children)
    with pytest.raises(ValueError, match="children: expected .*height=2, width=3, types=2"):
        ClassCaps(2, 3, centers=([0, 0], [0, 0, 0]))(children)
    with pytest.raises(ValueError, match="height: expected at least 7, got 6"):
        ConvCaps(2, 3, 7)(children)
    with pytest.raises(ValueError, match="unknown convention 'al'"):
        ConvCaps(2, 3, convention="al")
    with pytest.raises(ValueError, match="stride: expected at least 1, got 0"):
        ConvCaps(2, 3, 3, 0)
    with pytest.raises(ValueError, match="iterations: expected at least 1, got 0"):
        EMRouting(0)
    with pytest.raises(ValueError, match="out_types: expected at least 1, got 0"):
        ConvCaps(2, 0)

"""Layers: what a capsule is made of, and what voting means."""

import pytest
import torch
import torch.nn.functional as F

import torchcaps as tc
from torchcaps.errors import ArgumentError
from torchcaps.functional import dynamic_routing, squash, uniform_routing
from torchcaps.nn import (
    CapsuleLinear,
    DynamicRouting,
    FullyConnectedDecoder,
    PrimaryCaps,
    flatten_space,
    mask_capsules,
)
from torchcaps.nn.decoder import UpsamplingDecoder
from torchcaps.testing import random_capsules, seeded
from torchcaps.types import Capsules


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_primary_capsule_is_eight_channels_at_one_pixel(layout):
    layer = PrimaryCaps(5, types=3, dim=8, kernel_size=3, stride=2)
    x = torch.randn(2, 5, 11, 9).contiguous(memory_format=layout)
    capsules = layer(x)
    assert capsules.pose.shape == (2, 5, 4, 3, 8)
    features = F.conv2d(x, layer.conv.weight, layer.conv.bias, stride=2)
    for kind in range(3):
        expected = squash(features[1, 8 * kind : 8 * kind + 8, 3, 2])
        torch.testing.assert_close(capsules.pose[1, 3, 2, kind], expected)
    torch.testing.assert_close(
        capsules.activation, capsules.pose.norm(dim=-1), atol=1e-4, rtol=1e-3
    )


def test_shifting_the_image_by_a_stride_shifts_the_capsules():
    layer = PrimaryCaps(2, types=3, dim=4, kernel_size=3, stride=2)
    x = torch.randn(1, 2, 13, 13)
    moved = layer(x.roll(2, dims=3))
    torch.testing.assert_close(moved.pose[:, :, 1:], layer(x).pose[:, :, :-1])


def test_flatten_space_keeps_each_capsule_whole():
    capsules = random_capsules(2, 3, 4, space=(5, 6))
    flat = flatten_space(capsules)
    assert flat.pose.shape == (2, 90, 4)
    torch.testing.assert_close(flat.pose[1, (2 * 6 + 3) * 3 + 1], capsules.pose[1, 2, 3, 1])
    torch.testing.assert_close(
        flat.activation[1, (2 * 6 + 3) * 3 + 1], capsules.activation[1, 2, 3, 1]
    )


def test_capsule_linear_votes_by_a_matrix_for_each_pair():
    layer = CapsuleLinear(4, 3, 2, 5)
    assert layer.weight.shape == (4, 2, 5, 3)
    children = random_capsules(2, 4, 3)
    votes = torch.empty(2, 4, 2, 5)
    for i in range(4):
        for j in range(2):
            votes[:, i, j] = children.pose[:, i] @ layer.weight[i, j].T
    expected = dynamic_routing(votes, 3)
    parents = layer(children)
    torch.testing.assert_close(parents.pose, expected.pose)
    torch.testing.assert_close(parents.activation, expected.activation)
    torch.testing.assert_close(layer(children.pose).pose, expected.pose)  # a bare tensor of poses


@pytest.mark.parametrize(("children", "parents"), [(1152, 10), (200, 43), (3200, 2)])
def test_first_parents_start_at_length_0_4(children, parents):
    layer = CapsuleLinear(children, 8, parents, 16)
    pose = F.normalize(torch.randn(4, children, 8), dim=-1) * 0.1
    votes = tc.functional.linear_votes(pose, layer.weight)
    s = votes.sum(dim=1) / parents
    assert s.norm(dim=-1).mean().item() == pytest.approx(0.4, rel=0.15)


def test_bias_starts_at_0_1_and_weights_at_the_published_scale():
    layer = CapsuleLinear(1152, 8, 10, 16, bias=True)
    assert (layer.bias == 0.1).all()
    assert layer.weight.std().item() == pytest.approx(0.1, rel=0.02)
    assert CapsuleLinear(100, 8, 10, 16, init_std=0.5).weight.std().item() == pytest.approx(
        0.5, rel=0.02
    )


def test_routing_by_name_module_and_function():
    children = random_capsules(2, 6, 4)
    named = CapsuleLinear(6, 4, 3, 5, "dynamic", iterations=2)
    for routing in (DynamicRouting(2), lambda votes, activation: dynamic_routing(votes, 2)):
        other = CapsuleLinear(6, 4, 3, 5, routing)
        other.load_state_dict(named.state_dict())
        torch.testing.assert_close(other(children).pose, named(children).pose)
    uniform = CapsuleLinear(6, 4, 3, 5, "uniform")
    expected = uniform_routing(tc.functional.linear_votes(children.pose, uniform.weight))
    torch.testing.assert_close(uniform(children).pose, expected.pose)


def test_a_function_gets_the_bias_where_there_is_one():
    seen = []

    def route(votes, activation, bias=None):
        seen.append(bias)
        return dynamic_routing(votes, bias=bias)

    CapsuleLinear(6, 4, 3, 5, route)(torch.rand(2, 6, 4))
    layer = CapsuleLinear(6, 4, 3, 5, route, bias=True)
    layer(torch.rand(2, 6, 4))
    assert seen[0] is None
    assert seen[1] is layer.bias


def test_wrong_arguments():
    with pytest.raises(
        TypeError, match="routing 'uniform' takes no option 'iterations'; it takes: impl"
    ):
        CapsuleLinear(6, 4, 3, 5, "uniform", iterations=3)
    with pytest.raises(ValueError, match="unknown routing 'dynamc'; did you mean 'dynamic'"):
        CapsuleLinear(6, 4, 3, 5, "dynamc")
    with pytest.raises(ValueError, match="out_capsules: expected at least 1, got 0"):
        CapsuleLinear(6, 4, 0, 5)
    with pytest.raises(
        TypeError, match="routing: expected a name, a module or a function, got int"
    ):
        CapsuleLinear(6, 4, 3, 5, 3)
    with pytest.raises(ValueError, match=r"children: expected \[batch, children=6, dim=4\]"):
        CapsuleLinear(6, 4, 3, 5)(torch.rand(2, 7, 4))


def test_mask_keeps_the_label_or_the_longest():
    pose = torch.randn(2, 3, 4)
    capsules = Capsules(pose, torch.tensor([[0.1, 0.9, 0.5], [0.8, 0.2, 0.3]]))
    by_label = mask_capsules(capsules, torch.tensor([2, 1]))
    torch.testing.assert_close(by_label[0, 2], pose[0, 2])
    assert by_label[0, :2].abs().sum() == 0
    longest = mask_capsules(capsules)
    torch.testing.assert_close(longest[0, 1], pose[0, 1])
    torch.testing.assert_close(longest[1, 0], pose[1, 0])
    assert longest[1, 1:].abs().sum() == 0
    assert longest.shape == pose.shape  # the decoder sees which class it draws


def test_decoder_draws_images_in_range():
    decoder = FullyConnectedDecoder(3, 4, (2, 5, 6))
    drawn = decoder(torch.randn(7, 3, 4))
    assert drawn.shape == (7, 2, 5, 6)
    assert 0 <= drawn.min() <= drawn.max() <= 1


def test_record_routing():
    layer = torch.nn.Sequential(CapsuleLinear(6, 4, 5, 3), CapsuleLinear(5, 3, 2, 3))
    with tc.record_routing(layer) as record:
        layer(random_capsules(2, 6, 4))
        layer(random_capsules(3, 6, 4))
    assert list(record) == ["0", "1"]
    assert [r.coupling.shape for r in record["0"]] == [(2, 6, 5), (3, 6, 5)]
    assert record.last()["1"].coupling.shape == (3, 5, 2)
    torch.testing.assert_close(record["0"][0].coupling.sum(-1), torch.ones(2, 6))
    torch.testing.assert_close(record["1"][0].child_activation, record["0"][0].activation)
    layer(random_capsules(2, 6, 4))
    assert len(record["0"]) == 2  # closed


def test_record_routing_closes_after_an_error_and_nests():
    layer = CapsuleLinear(6, 4, 5, 3)
    with pytest.raises(ValueError, match="children"), tc.record_routing(layer):
        layer(torch.rand(2, 7, 4))
    assert layer.recorder is None
    with tc.record_routing(layer) as outer:
        with tc.record_routing(layer) as inner:
            layer(torch.rand(2, 6, 4))
        layer(torch.rand(2, 6, 4))
    assert len(inner[""]) == len(outer[""]) == 1
    with (
        pytest.raises(ValueError, match="record_routing: Linear has no routed layer"),
        tc.record_routing(torch.nn.Linear(2, 2)),
    ):
        pass


def test_children_that_compete_for_parents():
    """The softmax over the wrong axis, in weights that were trained with it."""
    layer, children = CapsuleLinear(6, 4, 5, 3, over="children"), torch.randn(2, 6, 4)
    with tc.record_routing(layer) as record:
        found = layer(children)
    votes = torch.einsum("bic,ijdc->bijd", children, layer.weight)
    b = torch.zeros(2, 6, 5)
    for step in range(3):
        c = b.softmax(dim=1)
        v = tc.functional.squash(torch.einsum("bij,bijd->bjd", c, votes))
        b = b + torch.einsum("bijd,bjd->bij", votes, v) if step < 2 else b
    torch.testing.assert_close(found.pose, v)
    torch.testing.assert_close(record[""][0].coupling, c)
    assert not layer.router.normalized
    layer.router = layer.router.uniform()
    torch.testing.assert_close(layer(children).pose, tc.functional.squash(votes.mean(dim=1)))
    with pytest.raises(ValueError, match="unknown over 'child'; did you mean 'children'"):
        CapsuleLinear(6, 4, 5, 3, over="child")


def test_primary_capsules_along_the_rows_of_a_channel():
    layer, images = (
        tc.nn.PrimaryCaps(2, types=3, dim=4, kernel_size=3, stride=1, grouping="flat"),
        torch.rand(2, 2, 6, 6),
    )
    capsules = layer(images)
    assert capsules.pose.shape == (2, 3 * 4 * 4, 4)
    torch.testing.assert_close(
        capsules.pose[:, 5], tc.functional.squash(layer.conv(images)[:, 1, 1])
    )
    model = tc.create_model("capsnet", channels=4, primary_types=2, grouping="flat", decoder=False)
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 10)
    with pytest.raises(ValueError, match="unknown grouping 'rows'"):
        tc.nn.PrimaryCaps(2, grouping="rows")


@pytest.mark.parametrize("name", ["pose", "activation"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float64, torch.complex64])
@pytest.mark.parametrize("routing", ["dynamic", "em", "vb", "self_routing", "heinsen_2022"])
def test_children_of_another_type_are_refused(routing, dtype, name):
    layer = CapsuleLinear(6, 4, 5, 4, routing)
    children = random_capsules(2, 6, 4)
    wrong = children._replace(**{name: getattr(children, name).to(dtype)})
    with pytest.raises(ArgumentError) as error:
        layer(wrong)
    assert error.value.argument == name
    assert str(dtype) in str(error.value)


def test_the_upsampling_decoder_keeps_the_middle_of_what_it_draws():
    whole = UpsamplingDecoder(3, 4, (1, 24, 24))
    cropped = UpsamplingDecoder(3, 4, (1, 20, 22))
    cropped.load_state_dict(whole.state_dict())
    pose = torch.randn(2, 3, 4, generator=seeded())
    assert torch.equal(cropped(pose), whole(pose)[:, :, 2:22, 1:23])

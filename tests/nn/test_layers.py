"""Layers of vector capsules, decoders, and the recording of a routing."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import torchcaps as tc
from torchcaps.errors import ArgumentError
from torchcaps.functional import dynamic_routing, linear_votes, squash, uniform_routing
from torchcaps.nn import (
    CapsuleLinear,
    DynamicRouting,
    PrimaryCaps,
    flatten_space,
    mask_capsules,
)
from torchcaps.nn.decoder import UpsamplingDecoder
from torchcaps.nn.votes import LinearVotes
from torchcaps.testing import random_capsules, seeded
from torchcaps.types import Capsules


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_primary_capsule_is_eight_channels_at_one_pixel(layout):
    layer = PrimaryCaps(5, types=3, dim=8, kernel_size=3, stride=2)
    x = torch.randn(2, 5, 11, 9).contiguous(memory_format=layout)
    capsules = layer(x)
    assert capsules.pose.shape == (2, 5, 4, 3, 8)
    features = F.conv2d(x, layer.conv.weight, layer.conv.bias, stride=2)
    pixel = features[1, :, 3, 2].view(3, 8)
    assert_close(capsules.pose[1, 3, 2], squash(pixel))
    lengths = capsules.pose.norm(dim=-1)
    assert_close(
        capsules.activation,
        lengths,
        atol=1e-4,
        rtol=1e-3,
    )


def test_flat_primary_capsules_lie_along_the_rows_of_a_channel():
    layer = PrimaryCaps(
        2,
        types=3,
        dim=4,
        kernel_size=3,
        stride=1,
        grouping="flat",
    )
    images = torch.rand(2, 2, 6, 6)
    capsules = layer(images)
    assert capsules.pose.shape == (2, 3 * 4 * 4, 4)
    assert_close(capsules.pose[:, 5], squash(layer.conv(images)[:, 1, 1]))
    with pytest.raises(ArgumentError, match="unknown grouping 'rows'"):
        PrimaryCaps(2, grouping="rows")


def test_flatten_space_keeps_each_capsule_whole():
    capsules = random_capsules(2, 3, 4, space=(5, 6))
    flat = flatten_space(capsules)
    assert flat.pose.shape == (2, 90, 4)
    index = (2 * 6 + 3) * 3 + 1
    assert_close(flat.pose[1, index], capsules.pose[1, 2, 3, 1])
    assert_close(flat.activation[1, index], capsules.activation[1, 2, 3, 1])


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
    assert_close(parents.pose, expected.pose)
    assert_close(parents.activation, expected.activation)
    assert_close(layer(children.pose).pose, expected.pose)  # a bare tensor of poses


@pytest.mark.parametrize(("children", "parents"), [(1152, 10), (200, 43)])
def test_first_parents_start_at_length_0_4(children, parents):
    layer = CapsuleLinear(children, 8, parents, 16)
    pose = F.normalize(torch.randn(4, children, 8), dim=-1) * 0.1
    s = linear_votes(pose, layer.weight).sum(dim=1) / parents
    assert s.norm(dim=-1).mean().item() == pytest.approx(0.4, rel=0.15)


def test_bias_starts_at_0_1_and_weights_at_the_published_scale():
    layer = CapsuleLinear(1152, 8, 10, 16, bias=True)
    assert (layer.bias == 0.1).all()
    assert layer.weight.std().item() == pytest.approx(0.1, rel=0.02)
    layer = CapsuleLinear(100, 8, 10, 16, init_std=0.5)
    assert layer.weight.std().item() == pytest.approx(0.5, rel=0.02)


def test_routing_by_name_module_and_function():
    children = random_capsules(2, 6, 4)
    named = CapsuleLinear(6, 4, 3, 5, "dynamic", iterations=2)
    for routing in (DynamicRouting(2), lambda votes, activation: dynamic_routing(votes, 2)):
        layer = CapsuleLinear(6, 4, 3, 5, routing)
        layer.load_state_dict(named.state_dict())
        assert_close(layer(children).pose, named(children).pose)
    uniform = CapsuleLinear(6, 4, 3, 5, "uniform")
    expected = uniform_routing(linear_votes(children.pose, uniform.weight))
    assert_close(uniform(children).pose, expected.pose)


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_function_takes_the_bias_of_a_layer(has_bias):
    biases = []

    def route(votes, activation, bias=None):
        biases.append(bias)
        return dynamic_routing(votes, bias=bias)

    layer = CapsuleLinear(6, 4, 3, 5, route, bias=has_bias)
    layer(torch.rand(2, 6, 4))
    assert biases[0] is layer.bias


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((3, 5, "uniform"), {"iterations": 3}, TypeError, "takes no option 'iterations'; .* impl"),
        ((3, 5, "dynamc"), {}, ValueError, "unknown routing 'dynamc'; did you mean 'dynamic'"),
        ((0, 5), {}, ValueError, "out_capsules: expected at least 1, got 0"),
        ((3, 5, 3), {}, TypeError, "routing: expected a name, a module or a function, got int"),
        ((3, 5), {"over": "child"}, ValueError, "unknown over 'child'; did you mean 'children'"),
    ],
)
def test_wrong_arguments(arguments, options, error, message):
    with pytest.raises(error, match=message):
        CapsuleLinear(6, 4, *arguments, **options)


def test_children_of_another_number_are_refused():
    with pytest.raises(ArgumentError, match=r"children: expected \[batch, children=6, dim=4\]"):
        CapsuleLinear(6, 4, 3, 5)(torch.rand(2, 7, 4))


@pytest.mark.parametrize("name", ["pose", "activation"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.complex64])
@pytest.mark.parametrize("routing", ["dynamic", "em", "heinsen_2022"])
def test_children_of_another_type_are_refused(routing, dtype, name):
    layer = CapsuleLinear(6, 4, 5, 4, routing)
    children = random_capsules(2, 6, 4)
    converted = getattr(children, name).to(dtype)
    with pytest.raises(ArgumentError, match=f"^{name}: .*{dtype}"):
        layer(children._replace(**{name: converted}))


def test_a_softmax_over_children():
    """The softmax over the wrong axis, for weights that were trained with it."""
    layer = CapsuleLinear(6, 4, 5, 3, over="children")
    children = torch.randn(2, 6, 4)
    assert not layer.router.normalized
    layer.router = layer.router.uniform()
    votes = linear_votes(children, layer.weight)
    assert_close(layer(children).pose, squash(votes.mean(dim=1)))


def test_a_mask_keeps_the_label_or_the_longest():
    pose = torch.randn(2, 3, 4)
    activation = torch.tensor([[0.1, 0.9, 0.5], [0.8, 0.2, 0.3]])
    capsules = Capsules(pose, activation)
    for labels, classes in ((torch.tensor([2, 1]), [2, 1]), (None, [1, 0])):
        masked = mask_capsules(capsules, labels)
        expected = torch.zeros_like(pose)
        for sample, label in enumerate(classes):
            expected[sample, label] = pose[sample, label]
        assert_close(masked, expected)


def test_recordings_have_one_entry_for_each_pass_of_each_layer():
    model = torch.nn.Sequential(CapsuleLinear(6, 4, 5, 3), CapsuleLinear(5, 3, 2, 3))
    with tc.record_routing(model) as record:
        model(random_capsules(2, 6, 4))
        model(random_capsules(3, 6, 4))
    model(random_capsules(2, 6, 4))  # after the block
    assert list(record) == ["0", "1"]
    first, second = record["0"]
    assert first.coupling.shape == (2, 6, 5)
    assert second.coupling.shape == (3, 6, 5)
    assert record.last()["1"].coupling.shape == (3, 5, 2)
    assert_close(first.coupling.sum(-1), torch.ones(2, 6))
    assert_close(record["1"][0].child_activation, first.activation)


def test_recordings_nest_and_end_after_an_error():
    layer = CapsuleLinear(6, 4, 5, 3)
    with pytest.raises(ArgumentError, match="children"), tc.record_routing(layer):
        layer(torch.rand(2, 7, 4))
    assert layer.recorder is None
    with tc.record_routing(layer) as outer:
        with tc.record_routing(layer) as inner:
            layer(torch.rand(2, 6, 4))
        layer(torch.rand(2, 6, 4))
    assert len(inner[""]) == len(outer[""]) == 1


def test_a_recording_goes_on_within_that_of_another_layer():
    model = torch.nn.Sequential(CapsuleLinear(6, 4, 5, 3), CapsuleLinear(5, 3, 2, 3))
    with tc.record_routing(model) as outer, tc.record_routing(model[1]) as inner:
        model(random_capsules(2, 6, 4))
    assert len(outer["0"]) == len(inner[""]) == 1


def test_a_recording_has_the_passes_of_its_own_thread():
    layer = CapsuleLinear(6, 4, 5, 3)
    barrier = threading.Barrier(2)
    batches = {}

    def record(batch):
        with tc.record_routing(layer) as traces:
            barrier.wait()
            layer(torch.rand(batch, 6, 4))
            barrier.wait()
        batches[batch] = [len(trace.coupling) for trace in traces[""]]

    threads = [threading.Thread(target=record, args=(batch,)) for batch in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert batches == {2: [2], 3: [3]}


def test_the_upsampling_decoder_crops_around_the_center():
    decoder = UpsamplingDecoder(3, 4, (1, 24, 24))
    cropped = UpsamplingDecoder(3, 4, (1, 20, 22))
    cropped.load_state_dict(decoder.state_dict())
    pose = torch.randn(2, 3, 4, generator=seeded())
    assert torch.equal(cropped(pose), decoder(pose)[:, :, 2:22, 1:23])


def test_sizes_of_another_type_are_refused():
    with pytest.raises(TypeError, match="LayerSizes"):
        LinearVotes((3, 2, 4, 5))

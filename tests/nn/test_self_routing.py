"""Self-routing against its equations in NumPy, and what follows from them."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchcaps as tc
from torchcaps.functional import DenseField, DenseVotes
from torchcaps.nn import LinearVotes, PoseVotes, RoutedLayer, create_router
from torchcaps.testing import check_module, check_module_gradients, random_capsules, seeded
from torchcaps.types import Capsules, LayerSizes

SIZES = LayerSizes(6, 4, 5, 3)


def make_layer(sizes=SIZES, votes=LinearVotes, field=DenseField, std=1.0):
    """A layer in float64 whose routing parameters have this standard deviation."""
    with tc.nn.use_generator(seeded(7)):
        layer = RoutedLayer(votes(sizes), "self_routing", field)
        for parameter in layer.router.parameters():
            parameter.data.normal_().mul_(std)
    return layer.double()


def random_children(*shape):
    pose = torch.randn(shape, generator=seeded(1), dtype=torch.float64)
    activation = torch.rand(
        shape[:-1],
        generator=seeded(2),
        dtype=torch.float64,
    )
    return Capsules(pose, activation)


def route_by_loops(u, a, W_pose, W_route, b):
    """One sample in logarithms: u `[i, C]`, a `[i]`, W_pose `[i, j, D, C]`, W_route `[i, j, C]`.

    Absent children have a = 0, whose logarithm is minus infinity.
    """
    children, parents, dim = len(u), W_route.shape[1], W_pose.shape[2]
    log_r = np.zeros((children, parents))
    log_a = np.full(children, -np.inf)
    for i in range(children):
        logits = W_route[i] @ u[i] + b[i]
        log_r[i] = logits - np.logaddexp.reduce(logits)
        if a[i] > 0:
            log_a[i] = np.log(a[i])
    pose = np.zeros((parents, dim))
    activation = np.zeros(parents)
    for j in range(parents):
        mass = np.logaddexp.reduce(log_a + log_r[:, j])
        activation[j] = np.exp(mass - np.logaddexp.reduce(log_a))
        for i in range(children):
            pose[j] += np.exp(log_a[i] + log_r[i, j] - mass) * (W_pose[i, j] @ u[i])
    return pose, activation, np.exp(log_r)


def get_parameters(layer):
    return [x.detach().numpy() for x in (layer.weight, layer.router.choice, layer.router.lean)]


def assert_equal_array(tensor, array):
    np.testing.assert_allclose(
        tensor.detach(),
        array,
        rtol=1e-12,
        atol=1e-12,
    )


def test_it_equals_loops():
    layer = make_layer()
    children = random_children(2, 6, 4)
    with tc.record_routing(layer) as record:
        layer(children)
    trace = record[""][0]
    for sample in range(2):
        u = children.pose[sample].numpy()
        a = children.activation[sample].numpy()
        pose, activation, coupling = route_by_loops(u, a, *get_parameters(layer))
        assert_equal_array(trace.pose[sample], pose)
        assert_equal_array(trace.activation[sample], activation)
        assert_equal_array(trace.coupling[sample], coupling)


def test_pose_votes_need_parents_of_the_childrens_dimensions():
    message = "sizes: expected parents of the children's 4 dimensions, got 3"
    with pytest.raises(ValueError, match=message):
        PoseVotes(SIZES)


def test_it_starts_uniform_and_learns_at_once():
    layer = RoutedLayer(LinearVotes(SIZES), "self_routing").double()
    children = random_children(2, 6, 4)
    parents = layer(children)
    assert_close(parents.activation, torch.full_like(parents.activation, 1 / 5))
    votes = layer.make_votes(children).dense()
    a = children.activation[..., None, None]
    assert_close(parents.pose, (a * votes).sum(dim=1) / a.sum(dim=1))
    (-parents.activation[:, 2].log().mean()).backward()
    for parameter in layer.router.parameters():
        assert parameter.grad.abs().min() > 0


def test_activations_are_relative():
    layer = make_layer()
    pose, activation = random_children(2, 6, 4)
    parents = layer(Capsules(pose, activation))
    assert_close(parents.activation.sum(dim=-1), torch.ones(2, dtype=torch.float64))
    for factor in (1e-300, 1e-6, 0.5):
        assert_close(layer(Capsules(pose, activation * factor)), parents)
    weak = Capsules(pose.float(), (activation * 1e-30).float())
    float32 = layer.float()(weak)
    assert_close(
        float32.pose,
        parents.pose.float(),
        rtol=1e-4,
        atol=1e-5,
    )


def test_children_that_are_all_absent_have_equal_weights():
    layer = make_layer()
    pose, activation = random_children(2, 6, 4)
    absent = layer(Capsules(pose, torch.zeros_like(activation)))
    present = layer(Capsules(pose, torch.ones_like(activation)))
    assert_close(absent.pose, present.pose)


def test_sure_children_leave_nothing_infinite():
    """Every child is certain of the first parent: the others have no mass."""
    router = create_router("self_routing")
    router.build(LayerSizes(4, 2, 3, 3))
    router.lean.data[:, 0] = 1000.0
    votes = torch.randn(2, 4, 3, 3, generator=seeded()).requires_grad_()
    routed = router(DenseVotes(votes, torch.rand(2, 4), torch.randn(2, 4, 2)))
    assert routed.activation[:, 0].eq(1).all()
    loss = routed.pose.sum() + routed.activation.square().sum()
    (gradient,) = torch.autograd.grad(loss, votes)
    assert routed.pose.isfinite().all()
    assert gradient.isfinite().all()


def test_properties_of_a_layer_of_choices():
    layer = make_layer(LayerSizes(4, 3, 2, 3), PoseVotes, std=0.5).float()
    check_module(layer, random_capsules(3, 4, 3))
    small = make_layer(LayerSizes(3, 2, 2, 2), PoseVotes)
    check_module_gradients(small, random_children(2, 3, 2))

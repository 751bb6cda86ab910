"""Self-routing against its equations in NumPy, and what follows from them."""

from functools import partial

import numpy as np
import pytest
import torch

import torchcaps as tc
from torchcaps.functional import ConvField, DenseField, DenseVotes
from torchcaps.nn import LinearVotes, PoseVotes, RoutedLayer, create_router
from torchcaps.testing import check_module, check_module_gradients, random_capsules, seeded
from torchcaps.types import Capsules, LayerSizes

SIZES = LayerSizes(6, 4, 5, 3)


def layer_of(sizes=SIZES, kind=LinearVotes, field=DenseField, stirred=1.0):
    with tc.nn.use_generator(seeded(7)):
        layer = RoutedLayer(kind(sizes), "self_routing", field)
        for parameter in layer.router.parameters():
            parameter.data.normal_().mul_(stirred)
    return layer.double()


def children_of(*shape, seed=1):
    pose = torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)
    return Capsules(pose, torch.rand(shape[:-1], generator=seeded(seed + 1), dtype=torch.float64))


def written_out(u, a, W_pose, W_route, b):
    """One sample in loops, in logarithms: u `[i, C]`, a `[i]`, W_pose `[i, j, D, C]`, W_route `[i, j, C]`, b `[i, j]`.

    Absent children have a = 0, whose logarithm is minus infinity.
    """
    children, parents, dim = len(u), W_route.shape[1], W_pose.shape[2]
    log_r, log_a = np.zeros((children, parents)), np.full(children, -np.inf)
    for i in range(children):
        logits = np.array([W_route[i, j] @ u[i] + b[i, j] for j in range(parents)])
        log_r[i] = logits - np.logaddexp.reduce(logits)
        if a[i] > 0:
            log_a[i] = np.log(a[i])
    pose, activation = np.zeros((parents, dim)), np.zeros(parents)
    for j in range(parents):
        mass = np.logaddexp.reduce(log_a + log_r[:, j])
        activation[j] = np.exp(mass - np.logaddexp.reduce(log_a))
        for i in range(children):
            pose[j] += np.exp(log_a[i] + log_r[i, j] - mass) * (W_pose[i, j] @ u[i])
    return pose, activation, np.exp(log_r)


def arrays(layer):
    return [x.detach().numpy() for x in (layer.weight, layer.router.choice, layer.router.lean)]


def test_equals_its_equations_in_numpy():
    layer, children = layer_of(), children_of(2, 6, 4)
    with tc.record_routing(layer) as record:
        parents = layer(children)
    for sample in range(2):
        u, a = (x[sample].numpy() for x in children)
        pose, activation, coupling = written_out(u, a, *arrays(layer))
        np.testing.assert_allclose(parents.pose[sample].detach(), pose, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(parents.activation[sample].detach(), activation, rtol=1e-12)
        np.testing.assert_allclose(record[""][0].coupling[sample], coupling, rtol=1e-12)


def test_a_convolution_equals_its_windows_in_numpy():
    """Kernel 3, stride 2, padding 1, as in depth 2: matrices belong to the place in the window and the type."""
    sizes = LayerSizes(9 * 2, 4, 3, 4)
    layer = layer_of(
        sizes, field=partial(ConvField, kernel=3, stride=2, padding=1, convention="type")
    )
    children = children_of(1, 4, 6, 2, 4)
    parents = layer(children)
    u, a = (np.pad(x[0].numpy(), [(1, 1), (1, 1)] + [(0, 0)] * (x.dim() - 3)) for x in children)
    for row in range(2):
        for column in range(3):
            window = slice(2 * row, 2 * row + 3), slice(2 * column, 2 * column + 3)
            pose, activation, _ = written_out(
                u[window].reshape(18, 4), a[window].reshape(18), *arrays(layer)
            )
            np.testing.assert_allclose(
                parents.pose[0, row, column].detach(), pose, rtol=1e-12, atol=1e-12
            )
            np.testing.assert_allclose(
                parents.activation[0, row, column].detach(), activation, rtol=1e-12
            )


def test_a_layer_that_only_chooses_gives_the_mean_of_poses():
    layer, children = layer_of(LayerSizes(6, 4, 5, 4), PoseVotes), children_of(2, 6, 4)
    identity = np.broadcast_to(np.eye(4), (6, 5, 4, 4))
    parents, (choice, lean) = (
        layer(children),
        (x.detach().numpy() for x in layer.router.parameters()),
    )
    for sample in range(2):
        u, a = (x[sample].numpy() for x in children)
        pose, activation, _ = written_out(u, a, identity, choice, lean)
        np.testing.assert_allclose(parents.pose[sample].detach(), pose, rtol=1e-12)
        np.testing.assert_allclose(parents.activation[sample].detach(), activation, rtol=1e-12)
    votes = layer.make_votes(children)
    c = torch.rand(2, 6, 5, generator=seeded(), dtype=torch.float64)
    torch.testing.assert_close(votes.weighted(c), torch.einsum("bij,bijd->bjd", c, votes.dense()))
    with pytest.raises(
        ValueError, match="sizes: expected parents of the children's 4 dimensions, got 3"
    ):
        PoseVotes(SIZES)


def test_it_starts_uniform_and_learns_at_once():
    layer, children = RoutedLayer(LinearVotes(SIZES), "self_routing").double(), children_of(2, 6, 4)
    parents = layer(children)
    torch.testing.assert_close(parents.activation, torch.full_like(parents.activation, 1 / 5))
    votes, a = layer.make_votes(children).dense(), children.activation[..., None, None]
    torch.testing.assert_close(parents.pose, (a * votes).sum(dim=1) / a.sum(dim=1))
    (-parents.activation[:, 2].log().mean()).backward()
    assert layer.router.choice.grad.abs().min() > 0
    assert layer.router.lean.grad.abs().min() > 0


def test_activations_are_relative():
    layer, children = layer_of(), children_of(2, 6, 4)
    parents = layer(children)
    torch.testing.assert_close(parents.activation.sum(dim=-1), torch.ones(2, dtype=torch.float64))
    for factor in (1e-300, 1e-6, 0.5):
        weaker = layer(children._replace(activation=children.activation * factor))
        for found, expected in zip(weaker, parents, strict=True):
            torch.testing.assert_close(found, expected)
    small = layer.float()(
        Capsules(*(x.float() for x in children._replace(activation=children.activation * 1e-30)))
    )
    torch.testing.assert_close(small.pose, parents.pose.float(), rtol=1e-4, atol=1e-5)


def test_the_activation_of_the_strongest_child_has_the_gradient_of_the_others():
    """It divides all of them, and no gradient is sent through that: there is none in the outcome."""
    layer, (pose, activation) = layer_of(), children_of(1, 6, 4)
    assert torch.autograd.gradcheck(
        lambda a: tuple(layer(Capsules(pose, a))), activation.requires_grad_()
    )


def test_an_absent_child_has_no_effect_and_all_absent_ones_count_alike():
    layer, (pose, activation) = layer_of(), children_of(2, 6, 4)
    activation[:, 3] = 0
    changed = pose.clone()
    changed[:, 3] = 100.0
    for found, expected in zip(
        layer(Capsules(changed, activation)), layer(Capsules(pose, activation)), strict=True
    ):
        torch.testing.assert_close(found, expected)
    none, all_of_them = (
        layer(Capsules(pose, torch.full_like(activation, value))) for value in (0.0, 1.0)
    )
    torch.testing.assert_close(none.pose, all_of_them.pose)


def test_children_in_another_order_with_their_weights_give_the_same():
    layer, children = layer_of(), children_of(2, 6, 4)
    before, order = layer(children), torch.tensor([3, 0, 5, 1, 4, 2])
    for parameter in layer.parameters():
        parameter.data = parameter.data[order]
    for found, expected in zip(
        layer(Capsules(*(x[:, order] for x in children))), before, strict=True
    ):
        torch.testing.assert_close(found, expected)


def test_sure_children_leave_nothing_infinite():
    """Every child is certain of the first parent: the others have no mass, in float32 not even the smallest."""
    router = create_router("self_routing")
    router.build(LayerSizes(4, 2, 3, 3))
    router.lean.data[:, 0] = 1000.0
    votes = torch.randn(2, 4, 3, 3, generator=seeded()).requires_grad_()
    routed = router(DenseVotes(votes, torch.rand(2, 4), torch.randn(2, 4, 2)))
    assert routed.activation[:, 0].eq(1).all()
    (gradient,) = torch.autograd.grad(routed.pose.sum() + routed.activation.square().sum(), votes)
    assert routed.pose.isfinite().all()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("kind", [LinearVotes, PoseVotes])
def test_layers_keep_every_property(kind):
    layer = layer_of(LayerSizes(4, 3, 2, 3), kind, stirred=0.5).float()
    check_module(layer, random_capsules(3, 4, 3))
    check_module_gradients(layer_of(LayerSizes(3, 2, 2, 2), kind), children_of(2, 3, 2))


def test_parameters_of_the_paper():
    """K^2 A B (D C + C + 1), and without pose K^2 A B (C + 1)."""
    conv = RoutedLayer(LinearVotes(LayerSizes(9 * 32, 16, 32, 16)), "self_routing")
    last = RoutedLayer(PoseVotes(LayerSizes(64 * 32, 16, 10, 16)), "self_routing")
    counts = [sum(p.numel() for p in layer.parameters()) for layer in (conv, last)]
    assert counts == [9 * 32 * 32 * (16 * 16 + 16 + 1), 64 * 32 * 10 * 17]

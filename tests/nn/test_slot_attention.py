"""Slot attention against values that were computed by hand, and what follows from its equations.

The values are those of weights that are identity matrices wherever they can be; see `hand_layer`.
"""

import math

import pytest
import torch
from torch.testing import assert_close

import torchcaps as tc
from torchcaps.functional import DenseVotes
from torchcaps.nn import RoutedLayer, SharedVotes, create_router
from torchcaps.nn.slot_attention import mean_weights
from torchcaps.testing import check_module, check_module_gradients, random_capsules, seeded
from torchcaps.types import Capsules, LayerSizes

INPUTS = [[4, 0, 0, 0], [0, 4, 0, 0], [0, 0, 4, 0]]
SLOTS = [[1, 0, 0, -1], [0, 1, -1, 0]]
COUPLINGS = [[0.836577, 0.163423], [0.163423, 0.836577], [0.836577, 0.163423]]


def doubles(rows):
    return torch.tensor(rows, dtype=torch.float64)


def capsules(rows):
    pose = doubles(rows).unsqueeze(0)
    return Capsules(pose, torch.ones_like(pose[..., 0]))


def hand_layer(iterations=1, children=3, parents=2, **options):
    """Identity matrices; a recurrent unit that gives (tanh u + s) / 2; an MLP of 0.1 relu."""
    votes = SharedVotes(LayerSizes(children, 4, parents, 4))
    layer = RoutedLayer(votes, "slot_attention", iterations=iterations, hidden=4, **options)
    router = layer.router
    with torch.no_grad():
        for parameter in (*router.gru.parameters(), router.expand.bias, router.contract.bias):
            parameter.zero_()
        router.gru.weight_ih[8:] = torch.eye(4)
        for matrix in (votes.weight, router.key.weight, router.query.weight, router.expand.weight):
            matrix.copy_(torch.eye(4))
        router.contract.weight.copy_(0.1 * torch.eye(4))
    return layer.double().eval()


def run(layer, inputs=INPUTS, slots=SLOTS, **options):
    """Slots, couplings and weights of one sample."""
    with tc.record_routing(layer) as record:
        layer(capsules(inputs), parents=capsules(slots), **options)
    trace = record[""][0]
    return trace.pose[0], trace.coupling[0], trace.extras["weights"][0]


def assert_near(tensor, expected):
    assert_close(tensor, doubles(expected), atol=2e-6, rtol=0)


def test_one_iteration_by_hand():
    layer = hand_layer()
    slots, coupling, weights = run(layer)
    keys = layer.make_votes(capsules(INPUTS)).pose[0]
    assert_near(keys[0], [1.732048, -0.577349, -0.577349, -0.577349])
    assert_near(coupling, COUPLINGS)
    assert_near(weights[:, 0], [0.455509, 0.088983, 0.455509])
    assert_near(weights[:, 1], [0.140468, 0.719065, 0.140468])
    assert_near(
        weights.mT @ keys,
        [[0.474601, -0.371853, 0.474601, -0.577349], [-0.252954, 1.083257, -0.252954, -0.577349]],
    )
    assert_near(
        slots,
        [[0.853611, -0.177806, 0.261491, -0.760368], [-0.123847, 1.061074, -0.623847, -0.260368]],
    )


@pytest.mark.parametrize(
    ("iterations", "first"),
    [
        (3, [0.773843, -0.382955, 0.526073, -0.580644]),
        (5, [0.749733, -0.449952, 0.618387, -0.535713]),
        (7, [0.736787, -0.469357, 0.652150, -0.524480]),
    ],
)
def test_more_iterations_by_hand(iterations, first):
    slots, coupling, _ = run(hand_layer(iterations))
    assert_near(slots[0], first)
    if iterations == 3:
        assert_near(slots[1], [-0.268890, 1.138554, -0.341967, -0.455644])
        expected = [[0.869202, 0.130798], [0.060526, 0.939474], [0.824328, 0.175672]]
        assert_near(coupling, expected)


def test_the_constant_of_the_layer_norms_shows_for_small_inputs():
    layer = hand_layer()
    small = capsules([[0.04, 0, 0, 0]] * 3)
    norms = [norm for norm in layer.modules() if isinstance(norm, torch.nn.LayerNorm)]
    for epsilon, first in ((1e-5, 1.703886), (1e-3, 0.832050)):
        for norm in norms:
            norm.eps = epsilon
        assert layer.make_votes(small).pose[0, 0, 0].item() == pytest.approx(first, abs=1e-6)
    assert_near(run(layer)[0][0], [0.853284, -0.177625, 0.261307, -0.760333])


def test_slots_are_exchangeable_and_their_number_may_change():
    layer = hand_layer(iterations=3)
    slots, coupling, _ = run(layer)
    swapped, swapped_coupling, _ = run(layer, slots=SLOTS[::-1])
    assert torch.equal(swapped, slots.flip(0))
    assert torch.equal(swapped_coupling, coupling.flip(1))
    permuted, permuted_coupling, _ = run(layer, inputs=INPUTS[::-1])
    assert_close(permuted, slots, atol=1e-14, rtol=0)
    assert_close(permuted_coupling, coupling.flip(0))
    wider = hand_layer(iterations=3, children=4, parents=5)
    wider.load_state_dict(layer.state_dict())
    assert wider(capsules([*INPUTS, INPUTS[0]])).pose.shape == (1, 5, 4)


def test_equal_slots_stay_equal():
    for iterations in (1, 4):
        slots, coupling, _ = run(hand_layer(iterations), slots=[SLOTS[0]] * 2)
        assert torch.equal(slots[0], slots[1])
        assert_near(coupling, [[0.5, 0.5]] * 3)


def test_zero_inputs_have_equal_couplings_and_finite_gradients():
    layer = hand_layer()
    slots, coupling, _ = run(layer, inputs=[[0] * 4] * 3)
    assert_near(coupling, [[0.5, 0.5]] * 3)
    assert_near(slots, [[0.641416, 0, 0, -0.5], [0, 0.641416, -0.5, 0]])
    pose = torch.zeros(1, 3, 4).double().requires_grad_()
    layer(Capsules(pose, torch.ones(1, 3).double())).pose.square().sum().backward()
    for gradient in (pose.grad, layer.router.mean.grad):
        assert gradient.isfinite().all()


def test_an_absent_child_is_as_if_it_were_not_there():
    mask = torch.tensor([[True, True, False]])
    for iterations in (1, 3):
        slots, _, weights = run(hand_layer(iterations), mask=mask)
        alone, _, weights_alone = run(hand_layer(iterations, children=2), inputs=INPUTS[:2])
        assert_close(slots, alone, atol=1e-15, rtol=0)
        assert_close(weights[:2], weights_alone, atol=1e-15, rtol=0)
        assert not weights[2].any()
    _, _, weights = run(hand_layer(), mask=mask)
    assert_near(weights[:2], [[0.836577, 0.163423], [0.163423, 0.836577]])
    slots, _, weights = run(hand_layer(), mask=torch.zeros(1, 3, dtype=torch.bool))
    assert not weights.any()
    assert slots.isfinite().all()


@pytest.mark.parametrize(
    ("epsilon", "expected"),
    [
        (0.0, [0.665241, 0.244728, 0.090031]),
        (1e-8, [0.665095, 0.244767, 0.090137]),
        (1e-3, [0.340716, 0.331363, 0.327922]),
    ],
)
def test_a_slot_that_won_nothing_takes_the_mean_of_all(epsilon, expected):
    coupling = torch.tensor([-10.0, -11.0, -12.0]).double().exp().unsqueeze(1)
    assert_near(mean_weights(coupling, epsilon=epsilon)[:, 0], expected)


@pytest.mark.parametrize(
    ("iterations", "expected"),
    [
        (
            1,
            [[0.715872, 0.113285, 0.113285, -0.760368], [0.118097, 0.747761, -0.404946, -0.260368]],
        ),
        (3, [[0.464369, 0.225445, 0.225445, -0.580644], [0.238270, 0.510918, 0.041345, -0.455644]]),
    ],
)
def test_with_equal_couplings_slots_contract_in_all_iterations(iterations, expected):
    layer = hand_layer(iterations)
    layer.router = layer.router.uniform()
    slots, coupling, _ = run(layer)
    assert_near(coupling, [[0.5, 0.5]] * 3)
    assert_near(slots, expected)


@pytest.mark.parametrize("start", ["random", "learned"])
def test_gradients_of_three_iterations_equal_finite_differences(start):
    votes = SharedVotes(LayerSizes(3, 2, 2, 3))
    with tc.nn.use_generator(seeded(3)):
        layer = RoutedLayer(votes, "slot_attention", start=start, hidden=4)
    check_module(layer, random_capsules(3, 3, 2))
    check_module_gradients(layer, random_capsules(2, 3, 2))


def test_the_last_iteration_alone_has_a_gradient():
    """Its gradient is that of one iteration from where the others end, passed on to the start."""
    whole = hand_layer(iterations=2, detach=True)
    whole(capsules(INPUTS)).pose.square().sum().backward()
    last = hand_layer()
    last.load_state_dict(whole.state_dict())
    before = last(capsules(INPUTS))
    detached = Capsules(before.pose.detach().requires_grad_(), before.activation)
    last.zero_grad()
    last(capsules(INPUTS), parents=detached).pose.square().sum().backward()
    assert_close(whole.router.key.weight.grad, last.router.key.weight.grad)
    assert_close(whole.router.mean.grad, detached.pose.grad.sum(dim=1))


def test_starts_are_drawn_in_training_and_repeated_in_evaluation():
    layer = hand_layer()
    children = capsules(INPUTS)
    assert torch.equal(layer(children).pose, layer(children).pose)
    layer.train()
    with tc.nn.use_generator(seeded(1)):
        first = layer(children).pose
        second = layer(children).pose
    assert not torch.equal(first, second)
    with tc.nn.use_generator(seeded(1)):
        assert torch.equal(layer(children).pose, first)
    router = create_router("slot_attention")
    router.build(LayerSizes(1, 1, 2000, 1))
    router.mean.data.fill_(3.0)
    router.log_deviation.data.fill_(math.log(2))
    votes = torch.zeros(1, 1, 2000, 1)
    starts = router._starts(DenseVotes(votes), votes[..., 0])
    assert starts.mean().item() == pytest.approx(3, abs=0.15)
    assert starts.std().item() == pytest.approx(2, abs=0.1)


def test_parameters_are_those_of_the_paper():
    sizes = LayerSizes(10, 64, 7, 64)
    layer = RoutedLayer(SharedVotes(sizes), "slot_attention")
    assert sum(parameter.numel() for parameter in layer.parameters()) == 54_336
    learned = RoutedLayer(SharedVotes(sizes), "slot_attention", start="learned")
    assert learned.router.mean.shape == (7, 64)
    for options, sentence in (
        ({"start": "zero"}, "unknown start 'zero'"),
        ({"hidden": 0}, "hidden: expected at least 1"),
    ):
        with pytest.raises(ValueError, match=sentence):
            create_router("slot_attention", **options)

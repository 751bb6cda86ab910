import pytest
import torch
from torch.testing import assert_close

from torchcaps.errors import AblationUnsupportedError, ArgumentError
from torchcaps.functional import dynamic_routing, straightness
from torchcaps.nn import EMRouting, create_router
from torchcaps.testing import planted_answers, planted_pair, planted_votes
from torchcaps.types import LayerSizes

NUM = 200
CHANCE = 0.1


def test_votes_that_agree_point_the_same_way_and_all_have_length_one():
    agrees = torch.zeros(5, 40, 3, dtype=torch.bool)
    agrees[:, :, 1] = True
    votes = planted_votes(agrees, 8)
    assert_close(votes.norm(dim=-1), torch.ones(5, 40, 3))
    ratio = straightness(torch.ones(5, 40, 3), votes)
    assert (ratio[:, 1] > 0.9).all()
    assert (ratio[:, [0, 2]] < 0.5).all()


@pytest.mark.parametrize("kind", ["agreement", "mean"])
def test_lengths_and_variances_do_not_tell_where_agreement_does(kind):
    votes, labels = planted_answers(kind, 2000, 16, 5, 8)
    assert torch.bincount(labels).tolist() == [400] * 5
    is_right = torch.nn.functional.one_hot(labels, 5).bool()
    length = votes.mean(dim=1).norm(dim=-1)
    variance = votes.var(dim=1, correction=0).sum(dim=-1)
    assert_close(variance, torch.ones(2000, 5))
    gain = length[is_right].mean() - length[~is_right].mean()
    assert gain.item() == pytest.approx(0.15 if kind == "mean" else 0.0, abs=0.005)


def test_dynamic_routing_needs_agreement_where_nothing_else_tells():
    pair = planted_pair("dynamic", NUM)
    assert pair.agreement.routed > 0.8
    assert pair.agreement.uniform == pytest.approx(CHANCE, abs=0.07)
    assert pair.agreement.without_agreement == pair.agreement.uniform
    assert 0.7 < pair.mean.uniform < 0.9
    assert pair.mean.routed == pytest.approx(pair.mean.uniform, abs=0.03)


@pytest.mark.parametrize("routing", ["em", "vb"])
def test_em_and_vb_keep_agreement_with_equal_couplings_and_fall_to_chance_without(routing):
    pair = planted_pair(routing, NUM)
    assert pair.agreement.routed > 0.95
    assert pair.agreement.uniform > 0.8
    assert pair.agreement.without_agreement == pytest.approx(CHANCE)
    assert pair.mean.without_agreement == pytest.approx(CHANCE)


def test_the_pair_of_a_built_router_has_the_sizes_of_its_layer():
    router = create_router("heinsen_2019")
    router.build(LayerSizes(30, 6, 5, 8))
    router.beta_use.data.fill_(1.0)
    pair = planted_pair(router, NUM)
    assert pair.agreement.routed > 0.8
    assert pair.agreement.uniform == pytest.approx(0.2)
    assert router.fixed is None


def test_options_reach_the_router_and_the_votes_are_those_of_the_seed():
    votes, labels = planted_answers("agreement", NUM, seed=3)
    answer = dynamic_routing(votes, 2).activation.argmax(dim=1)
    expected = (answer == labels).double().mean().item()
    pair = planted_pair("dynamic", NUM, seed=3, iterations=2)
    assert pair.agreement.routed == pytest.approx(expected, abs=0.01)
    assert planted_pair(EMRouting(iterations=1), NUM).agreement.routed > 0.9


def test_routers_that_the_pair_cannot_measure():
    with pytest.raises(ArgumentError, match="routing: expected activations of parents"):
        planted_pair("heinsen_2022", NUM)
    with pytest.raises(AblationUnsupportedError, match="makes its couplings by itself"):
        planted_pair(lambda votes, activation: dynamic_routing(votes), NUM)
    with pytest.raises(ArgumentError, match="kind"):
        planted_answers("length")
    with pytest.raises(ArgumentError, match="children: expected at least 2, got 1"):
        planted_answers("mean", 4, 1)

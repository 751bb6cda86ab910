"""The capsule head: any features, every router, weights that do not grow with the image."""

import pytest
import torch
from torch.testing import assert_close

from torchcaps.errors import ArgumentError
from torchcaps.models.notebook import parameter_count
from torchcaps.nn import CapsuleHead, list_routers
from torchcaps.nn.head import pool_positions
from torchcaps.testing import seeded

SHAPES = [(3, 12, 5, 6), (3, 20, 12), (3, 12), (1, 12, 2, 2)]


def make_head(routing="dynamic", **options):
    torch.manual_seed(0)
    return CapsuleHead(12, 5, routing, **{"types": 4, "dim": 4} | options)


@pytest.mark.parametrize("routing", list_routers())
@pytest.mark.parametrize("shape", SHAPES)
def test_every_router_on_maps_sequences_and_vectors(routing, shape):
    head = make_head(routing)
    features = torch.randn(shape, generator=seeded()).requires_grad_()
    capsules = head(features)
    assert capsules.pose.shape == (shape[0], 5, 4)
    assert capsules.activation.shape == (shape[0], 5)
    assert 0 <= capsules.activation.min() <= capsules.activation.max() <= 1

    (capsules.activation.square().sum() + capsules.pose.square().sum()).backward()
    assert features.grad.isfinite().all()
    for name, weight in head.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name


@pytest.mark.parametrize("routing", list_routers())
def test_bf16_autocast_gives_about_the_same_in_full_precision(routing):
    head = make_head(routing).eval()
    features = torch.randn(4, 12, 3, 3, generator=seeded())
    with torch.autocast("cpu", torch.bfloat16):
        activation = head(features).activation
    assert activation.dtype == torch.float32
    assert_close(activation, head(features).activation, atol=0.05, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("routing", list_routers())
def test_every_router_compiles_whole(routing):
    torch._dynamo.reset()  # all routers share the code of `forward`
    head = make_head(routing).eval()
    features = torch.randn(2, 12, 3, 3, generator=seeded())
    compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
    assert_close(compiled(features), head(features))


def test_the_weights_follow_the_features_and_not_the_image():
    head = make_head()
    count = parameter_count(head)
    for shape in ((1, 12, 2, 2), (1, 12, 40, 40), (1, 900, 12)):
        head(torch.rand(shape))
    assert parameter_count(head) == count


def test_positions_are_pooled_only_beyond_the_largest_number():
    x = torch.rand(2, 3, 4, 4, generator=seeded())
    assert pool_positions(x, 16) is x
    assert pool_positions(x, 15).shape == (2, 3, 3, 3)
    assert pool_positions(torch.rand(2, 3, 1, 16), 16).shape == (2, 3, 1, 16)
    assert pool_positions(torch.rand(2, 3, 2, 40), 16).shape == (2, 3, 2, 4)
    sequence = torch.rand(2, 8, 3, generator=seeded())
    expected = sequence.unflatten(1, (4, 2)).mean(dim=2)
    assert_close(pool_positions(sequence, 4), expected)


def test_matrices_are_shared_and_places_tell_positions_apart():
    head = make_head("uniform")
    features = torch.zeros(1, 12, 3, 3)
    features[0, :, 0, 1] = torch.randn(12, generator=seeded())
    moved = features.flip(2)  # from the top to the bottom
    with torch.no_grad():
        assert not torch.allclose(head(features).pose, head(moved).pose, atol=1e-4)
        head.primary.weight[:, 12:] = 0  # without places it is the sum over a bag of positions
        assert_close(head(features).pose, head(moved).pose)


def test_the_order_of_the_axes_does_not_matter():
    head = make_head()
    maps = torch.randn(2, 12, 1, 5, generator=seeded())
    assert_close(head(maps), head(maps.squeeze(2).mT))


@pytest.mark.parametrize("positions", [1, 4])
def test_classes_start_neither_dead_nor_saturated(positions):
    head = CapsuleHead(64, 10)
    features = torch.randn(8, 64, 1, 1, generator=seeded()).expand(-1, -1, positions, positions)
    assert 0.05 < head(features).activation.mean() < 0.4


def test_a_function_of_the_user_routes():
    def mean(votes, activation):
        from torchcaps.types import Routed

        pose = votes.mean(dim=-3)
        coupling = torch.full(votes.shape[:-1], 1 / votes.shape[-2])
        return Routed(pose, pose.norm(dim=-1).tanh(), coupling)

    assert make_head(mean)(torch.rand(2, 12)).pose.shape == (2, 5, 4)


def test_other_features_are_refused():
    head = make_head()
    with pytest.raises(ArgumentError, match="features: expected"):
        head(torch.rand(2, 11, 3, 3))
    with pytest.raises(ArgumentError, match="features: expected"):
        head(torch.rand(12))
    with pytest.raises(ArgumentError, match="types"):
        make_head(types=0)
    with pytest.raises(ArgumentError, match="P x P"):
        make_head("em", dim=5)

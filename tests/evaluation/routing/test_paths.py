import pytest
import torch
from torch.testing import assert_close

from torchcaps.errors import ArgumentError
from torchcaps.evaluation import vote_paths
from torchcaps.functional import dynamic_routing, em_routing

from ..stubs import RoutedPixels, assert_model_is_back

IMAGE = torch.rand(1, 6, 4, generator=torch.Generator().manual_seed(0))


def test_couplings_are_those_of_each_number_of_iterations():
    model = RoutedPixels(6, 5, 3).train()
    paths = vote_paths(model, IMAGE)
    assert paths.votes.shape == (5, 3, 4)
    for count in (1, 2, 3):
        routed = dynamic_routing(paths.votes[None], iterations=count)
        assert_close(paths.coupling[count - 1], routed.coupling[0])
        assert_close(paths.activation[count - 1], routed.activation[0])
    assert paths.straightness.shape == (3, 3)
    assert not paths.agreement
    assert_model_is_back(model)


def test_a_gaussian_has_its_children_by_their_activations():
    paths = vote_paths(RoutedPixels(6, 3, routing="em"), IMAGE)
    assert paths.agreement
    children = paths.coupling[0].sum(dim=1)  # equal shares, in all an activation
    routed = em_routing(paths.votes[None], children[None], 0.0, 0.0)
    assert_close(routed.coupling[0] * children[:, None], paths.coupling[-1])


def test_several_images_are_refused():
    model = RoutedPixels(6, 3)
    with pytest.raises(ArgumentError, match="image: expected"):
        vote_paths(model, IMAGE[None])

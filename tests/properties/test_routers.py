"""Every registered router, put to the checks that ship with the library: a new one needs no new test."""

import pytest
import torch

from torchcaps import functional, testing
from torchcaps.nn import CapsuleLinear, create_router, list_routers
from torchcaps.testing import PropertyError, check_router, random_capsules
from torchcaps.types import Routed

CHECKS = [
    testing.check_ranges,
    testing.check_permutations,
    testing.check_batch_independence,
    testing.check_extremes,
    testing.check_gradients,
    testing.check_precision,
    testing.check_copies,
]


@pytest.mark.parametrize("name", list_routers())
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_router(name, check):
    check(create_router(name))


def test_leaky_routing():
    check_router(create_router("dynamic", leaky=True), leaky=True)


@pytest.mark.parametrize("name", list_routers())
@pytest.mark.parametrize("bias", [False, True])
def test_layer(name, bias):
    layer = CapsuleLinear(6, 4, 5, 3, name, bias=bias)
    children = random_capsules(3, 6, 4)
    whole = layer(children)
    torch.testing.assert_close(whole.activation, whole.pose.norm(dim=-1), atol=1e-3, rtol=1e-3)
    alone = layer(type(children)(*(t[1:2] for t in children)))
    torch.testing.assert_close(alone.pose, whole.pose[1:2])
    order = torch.tensor([2, 0, 1, 5, 3, 4])
    layer.weight.data = layer.weight.data[order]
    moved = layer(type(children)(*(t[:, order] for t in children)))
    torch.testing.assert_close(moved.pose, whole.pose)


def children_softmax(votes, activation):
    """The widely copied slip: softmax over children."""
    b = torch.zeros_like(votes[..., 0])
    for step in range(3):
        c = b.softmax(dim=-2)
        v, length = functional.squash_with_length(torch.einsum("...ij,...ijd->...jd", c, votes))
        if step < 2:
            b = b + torch.einsum("...ijd,...jd->...ij", votes, v)
    return Routed(v, length, c)


def parents_apart(votes, activation):
    """Favours the first parent: not equivariant."""
    routed = functional.dynamic_routing(votes)
    favour = torch.arange(votes.shape[-2]) == 0
    return routed._replace(pose=routed.pose * (1 + favour.unsqueeze(-1)))


def batch_mixed(votes, activation):
    """Shares logits across the batch."""
    return functional.dynamic_routing(votes + votes.mean(dim=0, keepdim=True))


def bare_root(votes, activation):
    """Divides by a norm without care."""
    s = votes.mean(dim=-3)
    n = s.norm(dim=-1, keepdim=True)
    pose = n / (1 + n**2) * s
    return Routed(pose / n * n, pose.norm(dim=-1), torch.full_like(votes[..., 0], 1 / votes.shape[-2]))


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (children_softmax, testing.check_ranges),
        (parents_apart, testing.check_permutations),
        (batch_mixed, testing.check_batch_independence),
        (bare_root, testing.check_extremes),
    ],
)
def test_checks_catch_what_public_code_gets_wrong(broken, check):
    with pytest.raises(PropertyError):
        check(broken)

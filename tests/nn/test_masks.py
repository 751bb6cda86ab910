"""A masked child has no vote: padding changes no value and no gradient, by any router."""

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.testing import assert_close

import torchcaps as tc
from torchcaps import ops
from torchcaps.nn import (
    CapsuleHead,
    create_router,
    list_routers,
)
from torchcaps.testing import seeded

FEATURES, LENGTH = 6, 9


def routes():
    """Every router with each of its implementations."""
    for name in list_routers():
        operators = getattr(create_router(name), "operators", ())
        for impl in ["auto", *(i for op in operators for i in ops.implementations(op)[1:])]:
            yield name, impl


def outcome(head, features, inputs, weights):
    """Poses and activations of some calls, and the gradients of a sum of them."""
    capsules = [head(*each) for each in inputs]
    pose, activation = (torch.cat(x) for x in zip(*capsules, strict=True))
    loss = (pose.sum(dim=-1) * weights + activation * weights).sum()
    return pose, activation, torch.autograd.grad(loss, [features, *head.parameters()])


@pytest.mark.parametrize(("routing", "impl"), list(routes()))
@given(rows=st.lists(st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH), min_size=1))
@settings(max_examples=5, deadline=None)
def test_padding_changes_nothing(routing, impl, rows):
    torch.manual_seed(0)
    head = CapsuleHead(FEATURES, 3, routing, types=2, dim=4, max_positions=5).double()
    head.eval()  # in training some routings start from noise
    if impl != "auto":
        tc.nn.set_impl(head, impl)
    if impl == "triton" and not torch.cuda.is_available():
        pytest.skip("triton needs a GPU")
    mask = torch.tensor([*rows, [True] * LENGTH, [False] * LENGTH])
    is_empty = ~mask.any(dim=1)
    features = torch.randn(*mask.shape, FEATURES, generator=seeded()).double().requires_grad_()
    weights = torch.rand(len(mask), 3, generator=seeded(1)) * ~is_empty.unsqueeze(1)
    padded = features.masked_fill(~mask.unsqueeze(-1), torch.nan)
    alone = [
        (x[row if row.any() else ~row].unsqueeze(0),) for x, row in zip(features, mask, strict=True)
    ]
    pose, activation, grads = outcome(head, features, alone, weights)
    masked_pose, masked_activation, masked_grads = outcome(
        head, features, [(padded, mask)], weights
    )
    pose = pose.masked_fill(is_empty[:, None, None], 0)
    activation = activation.masked_fill(is_empty[:, None], 0)
    assert_close(masked_pose, pose, atol=1e-6, rtol=0)
    assert_close(masked_activation, activation, atol=1e-6, rtol=0)
    for x, y in zip(masked_grads, grads, strict=True):
        assert_close(x, y, atol=1e-6, rtol=1e-6)

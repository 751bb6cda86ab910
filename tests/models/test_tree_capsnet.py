"""The network for label trees against loops in NumPy, its sizes, and its controls."""

import math

import numpy as np
import pytest
import torch

import torchcaps as tc
from torchcaps.data.sets.fashion_mnist import GROUPS
from torchcaps.errors import UnknownNameError
from torchcaps.models.tree_capsnet import OFF_TREE, tree_prior

PATHS = ("a/p/0", "a/p/1", "a/q/2", "b/r/3", "b/r/4")  # 2, 3 and 5 classes
SMALL = {"num_classes": 5, "img_size": (12, 9), "channels": (4, 6, 16), "classes": PATHS}


def small(**options):
    return tc.create_model("tree_capsnet", **SMALL | options).eval()


def test_sizes_of_the_small_form():
    model = tc.create_model("tree_capsnet", classes=GROUPS)
    parts = {
        name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()
    }
    assert parts == {
        "convolutions": 320 + 18_496 + 73_856,
        "level_capsules": 65_536 + 199_680 + 343_040,
    }
    assert [tuple(layer.weight.shape) for layer in model.level_capsules] == [
        (256, 2, 16, 8),
        (130, 6, 16, 16),
        (134, 10, 16, 16),
    ]
    assert sum(p.numel() for p in model.parameters()) == 700_928
    flat = tc.create_model("tree_capsnet", classes=GROUPS, tree="flat", class_dim=30)
    assert sum(p.numel() for p in flat.parameters()) == 707_072
    assert (model.spec.task, flat.spec.task) == ("tree", "classify")
    found = model.levels(torch.rand(2, 1, 28, 28))
    assert [tuple(capsules.pose.shape) for capsules in found] == [
        (2, 2, 16),
        (2, 6, 16),
        (2, 10, 16),
    ]


def test_worked_values_of_the_prior():
    # Tops have 3 of 10 classes: a top's first couplings are 1.01 / (3 * 1.01 + 7 * 0.01) each, 0.326; others 0.0032.
    prior = tree_prior([0, 1, 0, 2, 3, 4, 0, 4, 5, 4], above=6, free=128)
    assert prior.shape == (134, 10)
    assert (prior[:128] == 0).all()
    shares = prior[128].softmax(dim=0)
    torch.testing.assert_close(shares[0].item(), 1.01 / 3.1, atol=1e-6, rtol=0)
    torch.testing.assert_close(shares[1].item(), 0.01 / 3.1, atol=1e-6, rtol=0)
    assert shares[[0, 2, 6]].sum() > 0.97
    torch.testing.assert_close(
        prior[133].softmax(dim=0)[8].item(), 1.01 / 1.1, atol=1e-6, rtol=0
    )  # bag alone


def squash(s):
    length = math.sqrt(float(s @ s) + 1e-8)
    return s * length / (1 + length**2)


def routed(children, weight, prior, iterations):
    """Procedure 1 of 2017 for one image, from log priors."""
    count, parents, dim, _ = weight.shape
    votes = np.zeros((count, parents, dim))
    for i in range(count):
        for j in range(parents):
            votes[i, j] = weight[i, j] @ children[i]
    b = prior.copy()
    for step in range(iterations):
        v = np.zeros((parents, dim))
        s = np.zeros((parents, dim))
        for i in range(count):
            c = np.exp(b[i] - b[i].max())
            c /= c.sum()
            for j in range(parents):
                s[j] += c[j] * votes[i, j]
        for j in range(parents):
            v[j] = squash(s[j])
        if step < iterations - 1:
            for i in range(count):
                for j in range(parents):
                    b[i, j] += v[j] @ votes[i, j]
    return v


@pytest.mark.parametrize("tree", ["labels", "none"])
def test_the_levels_are_the_equations(tree):
    torch.manual_seed(0)
    model = small(tree=tree).double()
    images = torch.rand(2, 1, 12, 9, dtype=torch.float64)
    parents = [(0, 0, 1), (0, 0, 1, 2, 2)]
    with torch.no_grad():
        found = model.levels(images)
        x = images
        for index, conv in enumerate(model.convolutions):
            x = conv(x if index == 0 else torch.relu(x))
    assert x.shape == (2, 16, 2, 2)
    for b in range(2):
        primary = np.array(
            [
                squash(x[b, t * 8 : t * 8 + 8, r, c].numpy())
                for r in range(2)
                for c in range(2)
                for t in range(2)
            ]
        )
        above = None
        for level, layer in enumerate(model.level_capsules):
            weight = layer.weight.detach().numpy()
            children = primary if above is None else np.concatenate([primary.reshape(4, 16), above])
            prior = np.zeros(weight.shape[:2])
            if above is not None and tree == "labels":
                for p in range(len(above)):
                    for k, parent in enumerate(parents[level - 1]):
                        prior[4 + p, k] = math.log(OFF_TREE + (parent == p))
            above = routed(children, weight, prior, 2)
            np.testing.assert_allclose(found[level].pose[b].numpy(), above, rtol=1e-5, atol=1e-7)
            lengths = [math.sqrt(v @ v) for v in above]
            np.testing.assert_allclose(
                found[level].activation[b].numpy(), lengths, rtol=1e-4, atol=1e-6
            )


def test_a_shuffled_tree_keeps_the_sizes_of_groups_and_is_kept_with_the_weights():
    models = [
        small(tree="shuffled", generator=torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1, 2)
    ]
    ours = [model.state_dict()["level_capsules.2.router.prior"] for model in models]
    assert ours[0].equal(ours[1])
    assert not ours[0].equal(ours[2]) or not ours[0].equal(ours[3])
    true = small().level_capsules[2].router.prior
    assert ours[0].shape == true.shape
    assert ours[0].exp().sum(dim=1).allclose(true.exp().sum(dim=1))
    assert "level_capsules.2.router.prior" not in small().state_dict()
    models[2].load_state_dict(models[0].state_dict())
    images = torch.rand(3, 1, 12, 9)
    torch.testing.assert_close(models[2](images), models[0](images))


def test_couplings_are_on_record_and_can_be_made_equal():
    model, images = small(iterations=1), torch.rand(3, 1, 12, 9)
    with tc.record_routing(model) as record:
        model(images)
    assert list(record) == [f"level_capsules.{level}" for level in range(3)]
    coupling = record["level_capsules.2"][0].coupling  # of one pass: the prior alone
    torch.testing.assert_close(
        coupling[:, 4:], model.level_capsules[2].router.prior[4:].softmax(dim=1).expand(3, 3, 5)
    )
    for layer in model.level_capsules:
        layer.router = layer.router.uniform()
    with tc.record_routing(model) as record:
        model(images)
    assert record["level_capsules.2"][0].coupling.allclose(torch.tensor(0.2))


def test_gradients_are_finite_at_zero():
    model = small().train()
    for convolution in model.convolutions:
        torch.nn.init.zeros_(convolution.bias)
    images = torch.zeros(2, 1, 12, 9, requires_grad=True)
    sum(capsules.activation.sum() for capsules in model.levels(images)).backward()
    assert images.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_many_classes_have_a_bias():
    names = tuple(f"{k % 3}/{k}" for k in range(12))
    layers = small(num_classes=12, classes=names).level_capsules
    assert [layer.bias is not None for layer in layers] == [False, True]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tree": "lables"}, UnknownNameError, "unknown tree 'lables'; did you mean 'labels'"),
        ({"classes": PATHS[:3]}, ValueError, "classes: expected a name for each of 5, got 3"),
        (
            {"channels": (4, 6, 8)},
            ValueError,
            "channels: expected three numbers, the last a multiple of 16, got",
        ),
        ({"channels": (4, 16)}, ValueError, "channels: expected three numbers"),
        (
            {"class_dim": 30},
            ValueError,
            "class_dim: expected 16, as two primary capsules have, got 30",
        ),
        (
            {"img_size": 7},
            ValueError,
            "img_size: expected images of at least 8x8 pixels, got 7x7",
        ),
        ({"iterations": 0}, ValueError, "iterations: expected at least 1, got 0"),
    ],
)
def test_wrong_options(options, error, message):
    with pytest.raises(error, match=message):
        small(**options)

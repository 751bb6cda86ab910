"""The network for label trees against loops in NumPy, its sizes, and its controls."""

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import torchcaps as tc
from torchcaps.data import dataset_info
from torchcaps.models.notebook import parameter_count
from torchcaps.models.tree_capsnet import OFF_TREE, tree_prior
from torchcaps.testing import seeded

GROUPS = dataset_info("fashion-mnist-tree").classes
PATHS = ("a/p/0", "a/p/1", "a/q/2", "b/r/3", "b/r/4")  # 2, 3 and 5 classes
PARENTS = [(0, 0, 1), (0, 0, 1, 2, 2)]
SMALL = {
    "num_classes": 5,
    "img_size": (12, 9),
    "channels": (4, 6, 16),
    "classes": PATHS,
}
FINEST_PRIOR = "level_capsules.2.router.prior"


def small_model(**options):
    return tc.create_model("tree_capsnet", **SMALL | options).eval()


def test_sizes_with_the_classes_of_fashion_mnist():
    model = tc.create_model("tree_capsnet", classes=GROUPS)
    shapes = [tuple(layer.weight.shape) for layer in model.level_capsules]
    assert shapes == [
        (256, 2, 16, 8),
        (130, 6, 16, 16),
        (134, 10, 16, 16),
    ]
    assert model.spec.task == "tree"
    levels = model.levels(torch.rand(2, 1, 28, 28))
    assert [level.pose.shape[1:] for level in levels] == [
        (2, 16),
        (6, 16),
        (10, 16),
    ]


def test_the_flat_control_has_one_level_and_as_many_parameters():
    model = tc.create_model("tree_capsnet", classes=GROUPS, tree="flat", class_dim=30)
    assert parameter_count(model) == 707_072
    assert model.spec.task == "classify"


def test_worked_values_of_the_prior():
    """Tops have 3 of 10 classes: their couplings start at 1.01 / (3 * 1.01 + 7 * 0.01), 0.326."""
    prior = tree_prior([0, 1, 0, 2, 3, 4, 0, 4, 5, 4], above=6, free=128)
    assert prior.shape == (134, 10)
    assert (prior[:128] == 0).all()
    shares = prior[128:].softmax(dim=1)
    assert shares[0, 0].item() == pytest.approx(1.01 / 3.1, abs=1e-6)
    assert shares[0, 1].item() == pytest.approx(0.01 / 3.1, abs=1e-6)
    assert shares[0, [0, 2, 6]].sum() > 0.97
    assert shares[5, 8].item() == pytest.approx(1.01 / 1.1, abs=1e-6)  # bags alone


def squash(s):
    length = math.sqrt(float(s @ s) + 1e-8)
    return s * length / (1 + length**2)


def route(children, weight, prior):
    """Procedure 1 of 2017 for one image, from log priors: two iterations."""
    votes = np.einsum("ijde,ie->ijd", weight, children)
    b = prior.copy()
    for _ in range(2):
        c = np.exp(b - b.max(axis=1, keepdims=True))
        c /= c.sum(axis=1, keepdims=True)
        s = np.einsum("ij,ijd->jd", c, votes)
        v = np.array([squash(row) for row in s])
        b = b + np.einsum("jd,ijd->ij", v, votes)
    return v


def expected_prior(level, above, shape):
    """Log priors of a level: those of the tree, after those of 4 pairs of primary capsules."""
    prior = np.zeros(shape)
    for parent in range(above):
        for k, parent_of_class in enumerate(PARENTS[level - 1]):
            prior[4 + parent, k] = math.log(OFF_TREE + (parent_of_class == parent))
    return prior


def primary_capsules(model, images):
    """`[batch, 8, 8]`: two types at 2 x 2 positions."""
    first, second, third = model.convolutions
    x = third(torch.relu(second(torch.relu(first(images)))))
    assert x.shape == (2, 16, 2, 2)
    children = x.permute(0, 2, 3, 1).reshape(2, 8, 8).numpy()
    return [np.array([squash(child) for child in image]) for image in children]


@pytest.mark.parametrize("tree", ["labels", "none"])
def test_the_levels_are_the_equations(tree):
    model = small_model(tree=tree, generator=seeded()).double()
    images = torch.rand(2, 1, 12, 9, dtype=torch.float64)
    with torch.no_grad():
        levels = model.levels(images)
        primaries = primary_capsules(model, images)
    for b, primary in enumerate(primaries):
        children = primary
        for level, layer in enumerate(model.level_capsules):
            weight = layer.weight.detach().numpy()
            prior = np.zeros(weight.shape[:2])
            if level and tree == "labels":
                prior = expected_prior(level, len(children) - 4, weight.shape[:2])
            poses = route(children, weight, prior)
            np.testing.assert_allclose(levels[level].pose[b], poses, rtol=1e-5, atol=1e-7)
            lengths = np.linalg.norm(poses, axis=1)
            activation = levels[level].activation[b]
            np.testing.assert_allclose(activation, lengths, rtol=1e-4, atol=1e-6)
            children = np.concatenate([primary.reshape(4, 16), poses])


def test_a_shuffled_tree_keeps_the_sizes_of_groups():
    prior = small_model().level_capsules[2].router.prior
    shuffled = small_model(tree="shuffled").level_capsules[2].router.prior
    assert shuffled.shape == prior.shape
    assert_close(shuffled.exp().sum(dim=1), prior.exp().sum(dim=1))


def test_a_shuffled_tree_is_drawn_by_the_generator_and_saved_with_the_weights():
    model = small_model(tree="shuffled", generator=seeded(0))
    twin = small_model(tree="shuffled", generator=seeded(0))
    stranger = small_model(tree="shuffled", generator=seeded(1))
    prior = model.state_dict()[FINEST_PRIOR]
    assert prior.equal(twin.state_dict()[FINEST_PRIOR])
    assert not prior.equal(stranger.state_dict()[FINEST_PRIOR])
    stranger.load_state_dict(model.state_dict())
    images = torch.rand(3, 1, 12, 9)
    assert_close(stranger(images), model(images))
    assert FINEST_PRIOR not in small_model().state_dict()


def test_couplings_can_be_made_equal():
    model = small_model()
    for layer in model.level_capsules:
        layer.router = layer.router.uniform()
    with tc.record_routing(model) as record:
        model(torch.rand(3, 1, 12, 9))
    assert record["level_capsules.2"][0].coupling.allclose(torch.tensor(0.2))


def test_many_classes_have_a_bias():
    names = tuple(f"{k % 3}/{k}" for k in range(12))
    layers = small_model(num_classes=12, classes=names).level_capsules
    assert [layer.bias is not None for layer in layers] == [False, True]

"""Parameter counts of inverted attention (arXiv 2002.04764) and Heinsen's network (1911.00792)."""

import torchcaps as tc
from torchcaps.models.notebook import parameter_count
from torchcaps.nn import RoutingHead


def test_inverted_attention_for_cifar10():
    model = tc.create_model("inverted_attention")
    assert parameter_count(model) == 1_828_817
    assert parameter_count(model.backbone) == 1_340_224
    first, second, classes = model.capsule_layers.layers
    assert parameter_count(first.votes) == parameter_count(second.votes) == 9 * 32 * 32 * 16
    assert parameter_count(classes.votes) == 800 * 10 * 16
    for layer in (first, second, classes):
        assert parameter_count(layer.router) == 32


def test_inverted_attention_for_cifar100():
    """Poses of 6x6, and a layer of 20 capsules before the classes."""
    model = tc.create_model("inverted_attention", num_classes=100, pose_size=6, hidden=(20,))
    assert parameter_count(model) == 2_799_629


def test_matrix_routing_for_smallnorb():
    model = tc.create_model("heinsen_2019")
    assert parameter_count(model) == 271_688
    assert parameter_count(model.part_capsules) == 64 * (16 + 16 + 2)
    assert parameter_count(model.class_capsules) == 64 * 5 * (16 + 16 + 2)


def test_layers_of_the_head():
    """`EfficientVectorRouting(n_inp=64, n_out=64, d_inp=1024, d_out=1024)` and one of any length."""
    n = m = 64
    d = 1024
    fixed = n * d + n + 2 * m * d + 2 * d * d + 2 * m * d + 4 * n * m
    any_length = d + 1 + 4 * m * d + 2 * d * d + 2 * m + 2 * (d * m + m)
    first, second, _ = RoutingHead(d, 10).routings
    assert parameter_count(first) == any_length
    assert parameter_count(second) == fixed

"""Parameter counts of inverted dot-product attention (arXiv 2002.04764) and of Heinsen's network (arXiv 1911.00792)."""

import torchcaps as tc
from torchcaps.nn import RoutingHead


def count(module):
    return sum(p.numel() for p in module.parameters())


def test_inverted_attention_for_cifar10():
    model = tc.create_model("inverted_attention")
    assert count(model) == 1_828_817
    assert count(model.backbone) == 1_340_224
    layers = [count(layer.votes) for layer in model.capsule_layers.layers]
    assert layers == [9 * 32 * 32 * 16, 9 * 32 * 32 * 16, 800 * 10 * 16]
    assert [count(layer.router) for layer in model.capsule_layers.layers] == [32, 32, 32]


def test_inverted_attention_for_cifar100():
    """Poses of 6x6, and a layer of 20 capsules before the classes."""
    assert (
        count(tc.create_model("inverted_attention", num_classes=100, pose_size=6, hidden=(20,)))
        == 2_799_629
    )


def test_matrix_routing_for_smallnorb():
    model = tc.create_model("heinsen_2019")
    assert count(model) == 271_688
    assert count(model.part_capsules) == 64 * (16 + 16 + 2)
    assert count(model.class_capsules) == 64 * 5 * (16 + 16 + 2)


def test_a_layer_of_the_head():
    """`EfficientVectorRouting(n_inp=64, n_out=64, d_inp=1024, d_out=1024)` and one of any number of inputs."""
    n, m, d = 64, 64, 1024
    fixed = n * d + n + 2 * m * d + 2 * d * d + 2 * m * d + 4 * n * m
    free = d + 1 + 4 * m * d + 2 * d * d + 2 * m + 2 * (d * m + m)
    head = RoutingHead(d, 10)
    assert [count(layer) for layer in head.routings][:2] == [free, fixed]

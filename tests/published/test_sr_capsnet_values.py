"""Whole networks of SR-CapsNet equal the authors' code: golden/sr_capsnet_*.npz."""

import torchcaps as tc
from published.golden_file import GoldenFile, carry_over, difference, renamed

TYPES = 4
DIM = 16
WIDTHS = (16, 32, 64)


def orders_of_channels():
    """For each stage of ResNet-20, the authors' channel at each place of ours.

    Their shortcuts put half of the missing channels before the others, ours all after them.
    """
    orders = [list(range(WIDTHS[0]))]
    for width in WIDTHS[1:]:
        pad = width // 4
        middle = [pad + channel for channel in orders[-1]]
        orders.append([*middle, *range(pad), *range(width - pad, width)])
    return orders


def resnet_weights(golden):
    """Weights of the trunk by our names, and the order of its last channels."""
    orders = orders_of_channels()
    weights = renamed(golden, "conv1.", "trunk.0.0.") | renamed(golden, "bn1.", "trunk.0.1.")
    below = orders[0]
    for block in range(9):
        above = orders[block // 3]
        source = f"layer{block // 3 + 1}.{block % 3}."
        target = f"trunk.{block + 1}."
        weights[target + "first.0.weight"] = golden.weights[source + "conv1.weight"][:, below]
        weights |= renamed(golden, source + "bn1.", target + "first.1.")
        weights[target + "second.0.weight"] = golden.weights[source + "conv2.weight"][above]
        for name, tensor in renamed(golden, source + "bn2.", target + "second.1.").items():
            weights[name] = tensor[above]
        below = above
    return weights, below


def convnet_weights(golden):
    """Weights of the six convolutions by our names, and the order of the last channels."""
    weights = {}
    for k in range(6):
        weights |= renamed(golden, f"layers.{3 * k}.", f"trunk.{k}.0.")
        weights |= renamed(golden, f"layers.{3 * k + 1}.", f"trunk.{k}.1.")
    return weights, list(range(128))


def head_weights(golden, channels):
    """Weights of all capsules by our names."""
    weights = {"primary.pose.0.weight": golden.weights["conv_pose.weight"][:, channels]}
    weights |= renamed(golden, "bn_pose.", "primary.pose.1.")
    if "conv_a.weight" in golden.weights:
        weights["primary.activation.0.weight"] = golden.weights["conv_a.weight"][:, channels]
        weights |= renamed(golden, "bn_a.", "primary.activation.1.")
        weights |= renamed(golden, "norm_layers.0.", "norm.")
    for source, target in (("conv_layers.0.", "conv_capsules."), ("fc.", "class_capsules.")):
        for name, tensor in golden.of(source).items():
            if name == "b2":
                weights[target + "router.lean"] = tensor[0, 0]
            elif name == "W2":
                weights[target + "router.choice"] = tensor
            else:
                weights[target + "votes.weight"] = tensor.unflatten(1, (-1, DIM))
    return weights


def compare(name, make_trunk_weights, first_weight, **options):
    """Differences of log scores and of the gradient of the first convolution."""
    golden = GoldenFile(name)
    trunk, channels = make_trunk_weights(golden)
    model = tc.create_model("sr_capsnet", types=TYPES, **options)
    carry_over(model, trunk | head_weights(golden, channels))
    activation = model.capsules(golden.inputs["images"]).activation
    log_scores = (activation / activation.sum(dim=1, keepdim=True)).log()
    log_scores[:, 0].sum().backward()
    gradient = model.trunk[0][0].weight.grad
    return (
        difference(log_scores, golden.outputs["log_scores"]),
        difference(gradient, golden.gradients[first_weight]),
    )


def test_self_routing_on_resnet():
    assert max(compare("sr_capsnet_resnet", resnet_weights, "conv1.weight", depth=2)) < 1e-12


def test_self_routing_on_convnet():
    options = {"backbone": "convnet", "in_chans": 1, "num_classes": 5}
    differences = compare("sr_capsnet_convnet", convnet_weights, "layers.0.weight", **options)
    assert max(differences) < 1e-12


def test_dynamic_routing_on_resnet():
    options = {"head": "dynamic", "depth": 2}
    assert max(compare("sr_capsnet_dynamic", resnet_weights, "conv1.weight", **options)) < 1e-12

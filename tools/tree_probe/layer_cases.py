"""Every router in layers of every kind, with its ablations and implementations; functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from adapter import call_spelled, first_of, standard_name, tree_spelling
from model_cases import leaves_of, option_label, recorded_routing

import torchcaps as tc
from records import NotApplicable, Record, add_gradients, random_images, random_tensor

ROUTERS: dict[str, list[dict[str, Any]]] = {
    "dynamic": [{}, {"leaky": True}, {"detach": True}, {"over": "children"}, {"iterations": 5}],
    "em": [{}, {"inverse_temperature": (0.1, 0.2, 0.4), "beta_u": 0.3, "beta_a": 0.1}],
    "map": [{}, {"local": True}],
    "random": [{}, {"seed": 3, "scale": 2.0}],
    "self_attention": [{}, {"scale": 2.0}, {"equal": True}],
    "vb": [
        {},
        {"covariance": "full"},
        {"batch_norm": True},
        {"weighted": True},
        {"outlier": -25.33},
    ],
}
CONVENTIONS = ("all", "type", "space", "patch")
IMPLEMENTATIONS = ("auto", "reference", "blocked", "numba")
CENTERS = ((0.1, 0.2, 0.3), (0.1, 0.25, 0.4))
PLACES = (3, 3)


def dense_layer(routing: str, **options: Any) -> tuple[Any, tuple[int, ...]]:
    layer = call_spelled(tc.nn.CapsuleLinear, 6, 4, 5, 4, routing=routing, **options)
    return layer, (6, 4)


def conv_layer(routing: str, **options: Any) -> tuple[Any, tuple[int, ...]]:
    sizes = {"padding": 1, "pose_size": 2}
    layer = call_spelled(tc.nn.ConvCaps, 2, 3, 3, 2, routing=routing, **sizes, **options)
    return layer, (5, 5, 2, 4)


def vector_conv_layer(routing: str, **options: Any) -> tuple[Any, tuple[int, ...]]:
    sizes = {"pose_size": (3, 4)}
    layer = call_spelled(tc.nn.ConvCaps, 2, 3, 2, 1, routing=routing, **sizes, **options)
    return layer, (4, 4, 2, 3)


def transposed_layer(routing: str, **options: Any) -> tuple[Any, tuple[int, ...]]:
    sizes = {"padding": 1, "pose_size": (4, 3)}
    kind = tc.nn.TransposedConvCaps
    layer = call_spelled(kind, 2, 3, 4, 2, routing=routing, **sizes, **options)
    return layer, (*PLACES, 2, 4)


def class_layer(routing: str, **options: Any) -> tuple[Any, tuple[int, ...]]:
    sizes = {"pose_size": 2, "centers": CENTERS}
    layer = call_spelled(tc.nn.ClassCaps, 2, 3, routing=routing, **sizes, **options)
    return layer, (*PLACES, 2, 4)


LAYERS: dict[str, Callable[..., tuple[Any, tuple[int, ...]]]] = {
    "dense": dense_layer,
    "conv": conv_layer,
    "vector conv": vector_conv_layer,
    "transposed": transposed_layer,
    "classes": class_layer,
}
FORMS: dict[str, Callable[[Any], Any]] = {
    "uniform": lambda router: router.uniform(),
    "random": lambda router: router.random(),
    "random, seed 3": lambda router: router.random(3, scale=0.5),
    "1 iteration": lambda router: first_of(router, "with_iterations")(1),
    "2 iterations": lambda router: first_of(router, "with_iterations")(2),
}


def router_cases(_steps: int) -> Iterator[tuple[str, Callable[[], Record]]]:
    for tree_name in tc.nn.list_routers():
        name = standard_name(tree_name)
        for options in ROUTERS.get(name, [{}]):
            label = f"{name}:{option_label(options)}" if options else name
            for kind in LAYERS:
                yield f"router/{label}/{kind}", partial(probe_router, tree_name, kind, options)
        for convention in CONVENTIONS:
            label = f"router/{name}/conv/{convention}"
            yield label, partial(probe_router, tree_name, "conv", {"convention": convention})
        for impl in IMPLEMENTATIONS:
            for kind in ("dense", "conv"):
                label = f"router/{name}/{kind}/{impl}"
                yield label, partial(probe_implementation, tree_name, kind, impl)
        yield f"router/{name}/votes", partial(probe_votes, tree_name)
        yield f"router/{name}/dense/bias", partial(probe_bias, tree_name)


def build_layer(name: str, kind: str, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """A layer in float64, and children for it. No parameter is zero, so that all of them count."""
    layer, shape = LAYERS[kind](name, **options)
    layer = layer.double()
    for seed, parameter in enumerate(layer.parameters()):
        parameter.data += 0.3 * random_tensor(*parameter.shape, seed=seed)
    pose = random_tensor(2, *shape, seed=50).requires_grad_()
    activation = random_images(2, *shape[:-1], seed=51).requires_grad_()
    return layer, tc.Capsules(pose, activation)


def examine_layer(record: Record, label: str, layer: Any, children: Any) -> None:
    """A pass as in training, and one that is recorded, which may take another path."""
    parents = layer(children)
    outputs = {"pose": parents.pose, "activation": parents.activation}
    record.add(label, outputs)
    leaves = {"pose": children.pose, "activation": children.activation, **leaves_of(layer)}
    add_gradients(record, f"{label}: gradients", outputs, leaves)
    record.add(f"{label}, recorded", recorded_routing(layer, lambda: layer(children)))


def probe_router(name: str, kind: str, options: dict[str, Any]) -> Record:
    record = Record()
    layer, children = build_layer(name, kind, options)
    examine_layer(record, "as it is", layer, children)
    router = layer.router
    for label, change in FORMS.items():
        try:
            layer.router = change(router)
            examine_layer(record, label, layer, children)
        except Exception as error:  # an ablation that this router has not
            if not isinstance(error, ValueError | tc.errors.TorchcapsError | NotImplementedError):
                raise
            record.add(f"{label}: refused", True)
    return record


def probe_implementation(name: str, kind: str, impl: str) -> Record:
    record = Record()
    layer, children = build_layer(name, kind, {})
    try:
        tc.set_impl(layer, impl)
        examine_layer(record, "as it is", layer, children)
    except ValueError as error:
        raise NotApplicable(str(error)) from None
    return record


def probe_votes(name: str) -> Record:
    """The router of a dense layer with votes that are given."""
    record = Record()
    layer, children = build_layer(name, "dense", {})
    votes = random_tensor(2, 6, 5, 4, seed=52).requires_grad_()
    try:
        routed = layer.router(votes, children.activation)
    except RuntimeError:  # a router that needs the poses of the children
        record.add("refused", True)
        return record
    outputs = {"pose": routed.pose, "activation": routed.activation}
    record.add("routed", outputs)
    record.add("coupling", routed.coupling)
    leaves = {"votes": votes, "activation": children.activation, **leaves_of(layer.router)}
    add_gradients(record, "gradients", outputs, leaves)
    return record


def probe_bias(name: str) -> Record:
    record = Record()
    layer, children = build_layer(name, "dense", {"bias": True})
    try:
        examine_layer(record, "as it is", layer, children)
    except ValueError:
        record.add("refused", True)
    return record


# Functions of tensors.


def function_cases(_steps: int) -> Iterator[tuple[str, Callable[[], Record]]]:
    yield "function/routing", probe_routing_functions
    yield "function/losses", probe_loss_functions
    yield "function/conv2d", probe_convolutions


def probe_routing_functions() -> Record:
    record = Record()
    votes = random_tensor(2, 6, 5, 4).requires_grad_()
    activation = random_images(2, 6, seed=2).requires_grad_()
    functional = tc.functional
    outputs = {
        "squash": functional.squash(votes),
        "dynamic": functional.dynamic_routing(votes, iterations=3).pose,
        "em": functional.em_routing(votes, activation, 0.3, 0.2, iterations=3).pose,
    }
    record.add("outputs", outputs)
    add_gradients(record, "gradients", outputs, {"votes": votes, "activation": activation})
    return record


def probe_loss_functions() -> Record:
    record = Record()
    activation = random_images(6, 4).requires_grad_()
    labels = torch.tensor([0, 3, 1, 2, 2, 0])
    outputs = {
        "margin": tc.functional.margin_loss(activation, labels),
        "hard margin": tc.functional.margin_loss(activation, labels, 0.95, 0.05, 0.8),
        "spread": tc.functional.spread_loss(activation, labels, 0.7),
    }
    record.add("outputs", outputs)
    add_gradients(record, "gradients", outputs, {"activation": activation})
    return record


def probe_convolutions() -> Record:
    """Large kernels in torch and in the frequency domain."""
    record = Record()
    images = random_tensor(2, 8, 18, 16).requires_grad_()
    weight = random_tensor(8, 8, 9, 9, seed=2).requires_grad_()
    tree_names = tc.ops.implementations("conv2d")
    for impl in ("reference", "blocked", "auto"):
        tree_impl = tree_spelling(impl, tree_names)
        for stride in (1, 2):
            label = f"{impl}, stride {stride}"
            outputs = {label: tc.ops.conv2d(images, weight, None, stride, impl=tree_impl)}
            record.add("outputs", outputs)
            leaves = {"images": images, "weight": weight}
            add_gradients(record, f"{label}: gradients", outputs, leaves)
    return record

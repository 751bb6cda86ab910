"""Every model of the registry, in the forms of a table: outputs, gradients, routing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from adapter import build_model, first_of, model_sizes, standard_name
from torch import Tensor, nn

import torchcaps as tc
from records import Record, add_gradients, in_float64, random_images

SIZES = {"num_classes": 3, "in_chans": 1, "img_size": 20}
CAPSNET = SIZES | {"channels": 8, "primary_types": 2, "class_dim": 4, "decoder": (8, 12)}
CNN = SIZES | {"channels": (4, 4), "kernels": (3, 5), "pool": True, "hidden": (8,)}
DEEPCAPS = SIZES | {"img_size": 18, "channels": 4, "types": 2, "class_dim": 4}
HVC = SIZES | {"img_size": 12, "convolutions": 3, "branches": (1, 3)}
INVERTED = SIZES | {"img_size": 16, "types": 2, "pose_size": 2, "backbone": "simple"}
MATRIX = SIZES | {"channels": 8, "primary_types": 2, "types": (2, 3)}
POINTS = {"capsules": 3, "channels": 4, "grid": 2, "decoder": (6,)}
SCAE = {"in_chans": 1, "img_size": 20, "parts": 3, "objects": 4, "channels": 4, "units": 8}
SEGCAPS = SIZES | {"num_classes": 4, "img_size": 16, "dim": 2}
SELF_ROUTING = SIZES | {"img_size": 12, "types": 2, "dim": 4}
SMALL_STEM = ((5, 1, 4), (3, 1, 8), (3, 2, 16))
TRANSFORMING = {
    "in_chans": 1,
    "img_size": 12,
    "capsules": 3,
    "recognition": 4,
    "generation": 5,
}
TREE_CLASSES = ("a/p/0", "a/p/1", "a/q/2", "b/r/3", "b/r/4")
TREE = {
    "num_classes": 5,
    "in_chans": 1,
    "img_size": 12,
    "classes": TREE_CLASSES,
    "channels": (4, 8, 16),
}
UNET = SIZES | {"num_classes": 4, "img_size": 18, "channels": 2, "levels": 2}
VB = SIZES | {"channels": 8, "primary_types": 2}

# Name -> options of all its forms, and what each form has besides.
MODELS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "affcaps": (
        CAPSNET,
        [{}, {"share": "position", "constant": "1/K"}, {"share": "none", "routing_iters": 2}],
    ),
    "canonical_capsules": (
        POINTS | {"in_chans": 3, "img_size": (12, 1)},
        [{}, {"canonical": False}],
    ),
    "canonical_capsules_small": (POINTS | {"in_chans": 2, "img_size": (12, 1)}, [{}]),
    "capsnet": (
        CAPSNET,
        [
            {},
            {"between": (4,)},
            {"grouping": "flat"},
            {"num_classes": 11},
            {"routing": "em", "class_dim": 8, "decoder": False},
            {"img_size": (24, 20), "in_chans": 3, "iterations": 1},
        ],
    ),
    "capsnet_small": (SIZES | {"decoder": (8, 12)}, [{}]),
    "cnn_baseline": (CNN, [{}, {"pool": False, "standardized": True}]),
    "cnn_matched": (SIZES | {"match": "matrix_caps_small"}, [{}]),
    "cnn_multimnist": (CNN | {"num_classes": 3}, [{}]),
    "cnn_smallnorb": (CNN, [{}]),
    "deepcaps": (DEEPCAPS, [{}, {"local": True, "decoder": False}]),
    "deepcaps_small": (DEEPCAPS, [{}]),
    "efficient_capsnet": (
        SIZES | {"stem": SMALL_STEM},
        [{}, {"norm": "instance", "slope": 0.2}, {"norm_first": True, "decoder": "upsampling"}],
    ),
    "efficient_capsnet_multimnist": (SIZES | {"img_size": 24}, [{}]),
    "efficient_capsnet_smallnorb": (SIZES | {"img_size": 28}, [{}]),
    "heinsen": (SIZES | {"channels": 8, "hidden": (4, 4)}, [{}, {"iterations": 1}]),
    "heinsen_2019": (SIZES | {"channels": 8, "strides": (1, 2, 1), "parts": 4}, [{}]),
    "hvc": (HVC, [{}, {"merge": "random"}, {"merge": "fixed"}]),
    "inverted_attention": (INVERTED, [{}, {"hidden": (4,)}, {"sequential": True}]),
    "inverted_attention_small": (INVERTED, [{}]),
    "matrix_caps": (
        MATRIX,
        [
            {},
            {"convention": "space", "coordinates": False, "bias": True},
            {"pose_size": 2, "iterations": 2, "standardized": True},
        ],
    ),
    "matrix_caps_small": (MATRIX, [{}]),
    "resnet20": (SIZES | {"img_size": 12, "width": 2}, [{}, {"shortcut": "B"}]),
    "scae": (SCAE | {"strides": (2, 2, 1)}, [{}]),
    "segcaps": (SEGCAPS, [{}, {"decoder": False, "img_size": (14, 20)}]),
    "segcaps_r1": (SEGCAPS, [{}]),
    "segcaps_small": (SEGCAPS, [{}]),
    "sr_capsnet": (
        SELF_ROUTING,
        [
            {},
            {"head": "dynamic"},
            {"head": "em", "backbone": "convnet"},
            {"depth": 2, "uniform": True},
        ],
    ),
    "sr_capsnet:average": (SIZES | {"img_size": 12}, [{"head": "average"}]),
    "sr_capsnet:linear": (SIZES | {"img_size": 12}, [{"head": "linear"}]),
    "transforming_autoencoder": (
        TRANSFORMING,
        [{}, {"pose": "affine", "bounded": True}, {"pose": "affine", "constrained": True}],
    ),
    "tree_capsnet": (TREE, [{}, {"tree": "shuffled"}, {"tree": "none"}, {"tree": "flat"}]),
    "unet": (UNET, [{}]),
    "unet_matched": (UNET, [{}]),
    "vb_caps": (
        VB | {"types": (2, 3)},
        [{}, {"covariance": "full", "batch_norm": False}, {"weighted": True, "outlier": -25.33}],
    ),
    "vb_caps_small": (VB, [{}]),
}
SMALL_SIDES = (8, 12, 16, 20, 24, 28, 32)  # tried in this order for a model without a row

# Networks of a size for which fast paths pay, in float32: name, options, images.
FAST_MODELS: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("capsnet_small", {"img_size": 28}, 8),
    ("matrix_caps_small", {"img_size": 24}, 4),
    ("segcaps_small", {"img_size": 32}, 2),
    ("deepcaps_small", {"img_size": 32}, 4),
)


def option_label(options: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={option}".replace(" ", "") for name, option in options.items())


def model_cases(_steps: int) -> Iterator[tuple[str, Callable[[], Record]]]:
    names = [standard_name(name) for name in tc.list_models()]
    for row, (base, forms) in MODELS.items():
        name = row.split(":")[0]
        if name not in names:
            continue
        for form in forms:
            label = f"{name}:{option_label(form)}" if form else name
            yield f"model/{label}", partial(probe_model, name, base | form)
    for name in names:
        if name not in MODELS:
            yield f"model/{name}", partial(probe_new_model, name)
    for name in tc.list_models(pretrained=True):
        yield f"model/{standard_name(name)}:pretrained", partial(probe_pretrained, name)
    for name, options, count in FAST_MODELS:
        yield f"model/{name}:float32", partial(probe_fast_model, name, options, count)


def probe_model(name: str, options: dict[str, Any]) -> Record:
    return examine_model(build_model(name, **options))


def probe_new_model(name: str) -> Record:
    """A model without a row: at the smallest square that it takes, else at its published size."""
    sizes = model_sizes(name)
    for img_size in (*SMALL_SIDES, sizes["img_size"]):
        with suppress(ValueError, RuntimeError):
            return examine_model(build_model(name, **sizes | {"img_size": img_size}))
    raise LookupError(f"no size suits {name}: give it a row in MODELS")


def probe_pretrained(name: str) -> Record:
    """Weights of the package, and what they make of digits."""
    record = Record()
    model = tc.create_model(name, pretrained=True)
    record.add_group("weights", model.state_dict().items())
    digits = tc.data.load_dataset("digits", "test")
    with torch.no_grad():
        record.add("outputs", model.eval()(digits.float_images(range(4))))
    return record


def probe_fast_model(name: str, options: dict[str, Any], count: int) -> Record:
    """A step of a network in float32 by the implementations that "auto" takes."""
    record = Record()
    model = build_model(name, **options).train()
    images = random_images(count, model.in_chans, *model.img_size).float().requires_grad_()
    outputs = {"outputs": model(images)}
    record.add("training", outputs)
    add_gradients(record, "gradients", outputs, {"images": images, **leaves_of(model)})
    return record


def leaves_of(module: nn.Module) -> dict[str, Tensor]:
    return {f"parameter {name}": parameter for name, parameter in module.named_parameters()}


def examine_model(model: Any) -> Record:
    record = Record()
    record.add_group("initial weights", model.state_dict().items())
    model = in_float64(model).eval()
    images = random_images(3, model.in_chans, *model.img_size).requires_grad_()

    outputs = model_outputs(model, images)
    for name, tensor in outputs.items():
        record.add(name, tensor)
    add_gradients(record, "gradients", outputs, {"images": images, **leaves_of(model)})
    record.add("routing", recorded_routing(model, lambda: model.capsules(images)))

    torch.manual_seed(1)
    record.add("training outputs", model.train()(images))
    record.add_group("buffers after a training pass", model.named_buffers())
    return record


def model_outputs(model: Any, images: Tensor) -> dict[str, Tensor]:
    """Everything that the model declares to give."""
    spec = model.spec
    outputs = {"outputs": model(images)}
    if spec.logits:
        outputs["logits"] = model.logits(images)
    if not spec.pose:
        return outputs
    capsules = model.capsules(images)
    outputs["capsules.pose"], outputs["capsules.activation"] = capsules
    if not spec.decoder:
        return outputs
    outputs["reconstruction"] = model.reconstruct(capsules)
    labels = torch.arange(len(images)) % 3
    if first_of(spec, "is_dense"):
        places = torch.arange(model.img_size[0] * model.img_size[1]).view(1, *model.img_size)
        labels = (labels.view(-1, 1, 1) + places) % model.num_classes
    outputs["labelled reconstruction"] = model.reconstruct(capsules, labels)
    return outputs


def recorded_routing(module: nn.Module, run: Callable[[], Any]) -> dict[str, Tensor]:
    """What routed layers tell in a pass: couplings, poses and activations, layer after layer."""
    recorded = {}
    try:
        with tc.record_routing(module) as traces:
            run()
    except ValueError:  # no routed layer
        return recorded
    for layer, passes in enumerate(traces.values()):
        for number, trace in enumerate(passes):
            place = f"layer {layer}, pass {number}"
            recorded[f"{place}: coupling"] = trace.coupling
            recorded[f"{place}: pose"] = trace.pose
            recorded[f"{place}: activation"] = trace.activation
    return recorded

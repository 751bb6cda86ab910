"""What the property tests run over: registries, and the options that a signature shows."""

import inspect

from torchcaps.nn import create_router, list_routers

SECOND = ("heinsen_2022",)  # some of its parameters come in from the second iteration on


def variants(name):
    """A router's default, each of its switches turned on, and few and many iterations where it iterates."""
    parameters = inspect.signature(type(create_router(name))).parameters
    yield {}
    yield from ({option: True} for option, p in parameters.items() if p.default is False)
    if "iterations" in parameters:
        yield from ({"iterations": count} for count in (2 if name in SECOND else 1, 5))


def named(value):
    """A test's id from a name or from options."""
    if isinstance(value, str):
        return value
    return ",".join(f"{key}={setting}" for key, setting in value.items()) or "default"


# The library's own: files of tests register others.
OWN = [
    name for name in list_routers() if type(create_router(name)).__module__.startswith("torchcaps.")
]
ROUTERS = [(name, options) for name in OWN for options in variants(name)]

# Options of models whose published size costs seconds and proves nothing more; their counts are checked elsewhere.
SMALLER = {
    "cnn_baseline": {"channels": (16, 16, 8)},
    "cnn_multimnist": {"channels": (16, 16), "hidden": (32,)},
    "deepcaps": {"channels": 16, "types": 4},
    "deepcaps_small": {"channels": 8, "types": 4},
    "canonical_capsules": {"capsules": 4, "channels": 8, "decoder": (16,)},
    "transforming_autoencoder": {"capsules": 4, "bounded": True},  # its outputs are pixels
    **{name: {"dim": 2, "img_size": 16} for name in ("segcaps", "segcaps_r1", "segcaps_small")},
    **{name: {"channels": 2, "levels": 3, "img_size": 16} for name in ("unet", "unet_matched")},
    "inverted_attention": {"backbone": "simple", "types": 4},
    "heinsen_2019": {"channels": 8, "parts": 4},
}

# Routers whose logits are products of votes: those of the default size, made for squash, decide so sharply that five
# iterations make a difference of 5 % of the rounding of a weight.
MILDER = {"inverted_attention": {"init_std": 1.0}}

"""Routers with the options that their signatures show, and models in small sizes."""

import inspect

import pytest

from torchcaps.nn import create_router, list_routers

SECOND = ("heinsen_2022",)  # some of its parameters come in from the second iteration on


def name_options(options):
    """The id of a test."""
    return ",".join(f"{key}={setting}" for key, setting in options.items()) or "default"


def make_variants(name):
    """A router's default, each of its switches turned on, few iterations and, slow, many."""
    parameters = inspect.signature(type(create_router(name))).parameters
    switches = [option for option, parameter in parameters.items() if parameter.default is False]
    variants = [{}, *({switch: True} for switch in switches)]
    if "iterations" in parameters:
        variants += [{"iterations": 2 if name in SECOND else 1}, {"iterations": 5}]
    for options in variants:
        marks = [pytest.mark.slow] if options.get("iterations") == 5 else []
        yield pytest.param(name, options, id=f"{name}-{name_options(options)}", marks=marks)


# The library's own: files of tests register others.
LIBRARY_ROUTERS = [
    name for name in list_routers() if type(create_router(name)).__module__.startswith("torchcaps.")
]
ROUTERS = [variant for name in LIBRARY_ROUTERS for variant in make_variants(name)]

# Routers whose logits are products of votes: those of the default size, made for squash, decide so
# sharply that five iterations make a difference of 5 % of the rounding of a weight.
MILDER = {"inverted_attention": {"init_std": 1.0}}

from __future__ import annotations

import pytest
import torch

from checks import column
from torchcaps.bench import benchmark_routers
from torchcaps.bench.layer import routers_known
from torchcaps.errors import UnknownNameError
from torchcaps.functional import uniform_routing
from torchcaps.nn import Router, list_routers, register_router, routers as registry

from .test_timing import ticking


class Noting(Router):
    """Uniform routing that records its options and the sizes of its votes."""

    options: list[tuple[int, bool]] = []  # noqa: RUF012 (shared on purpose)
    vote_sizes: list[torch.Size] = []  # noqa: RUF012

    def __init__(self, iterations=7, *, sharp=False):
        super().__init__()
        self.options.append((iterations, sharp))

    def route(self, votes, parents):
        self.vote_sizes.append(votes.dense().shape[:-1])
        return uniform_routing(votes)


@pytest.fixture
def router(restore):
    """The name of a router that the library does not come with."""
    restore(registry.ROUTERS)
    register_router("noting")(Noting)
    Noting.options.clear()
    Noting.vote_sizes.clear()
    return "noting"


def test_every_registered_router_is_measured_beside_uniform_coupling(sizes):
    rows = benchmark_routers(sizes, list_routers(), 1, ticking())
    assert column(rows, "variant") == list_routers()
    for row in rows:
        assert row["forward ms"] == row["forward+backward ms"] == 1000
        assert row["x uniform"] == 1


def test_a_registered_router_gets_the_same_sizes_and_iterations(sizes, router):
    rows = benchmark_routers(sizes, [router], 2, ticking(), options={router: {"sharp": True}})
    assert column(rows, "variant") == [router]
    assert Noting.options[-1] == (sizes.iterations, True)
    assert set(Noting.vote_sizes) == {(sizes.batch, sizes.children, sizes.parents)}
    benchmark_routers(sizes, [router], 1, ticking(), options={router: {"iterations": 2}})
    assert Noting.options[-1] == (2, False)


def test_routers_are_chosen_by_name_once_each(router):
    assert routers_known() == list_routers()
    assert routers_known([router, "uniform", router]) == [router, "uniform"]


def test_unknown_routers_and_options_are_refused(sizes, router):
    with pytest.raises(UnknownNameError, match="unknown routing 'notin'; did you mean 'noting'"):
        benchmark_routers(sizes, ["notin"], 1, ticking())
    with pytest.raises(TypeError, match="routing 'noting' takes no option 'sharpe'"):
        benchmark_routers(sizes, [router], 1, ticking(), options={router: {"sharpe": True}})

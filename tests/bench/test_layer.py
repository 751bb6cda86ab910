from __future__ import annotations

import pytest
import torch

from torchcaps.bench import benchmark_routers
from torchcaps.bench.layer import routers_known
from torchcaps.errors import UnknownNameError
from torchcaps.functional import uniform_routing
from torchcaps.nn import Router, list_routers, register_router, routers as registry

from .test_timing import ticking


class Noting(Router):
    """Uniform routing that records its options and the sizes of its votes."""

    options_seen: list[int] = []  # noqa: RUF012 (shared on purpose)
    sizes_seen: list[torch.Size] = []  # noqa: RUF012

    def __init__(self, iterations=7, *, sharp=False):
        super().__init__()
        self.options_seen.append((iterations, sharp))

    def route(self, votes, parents):
        self.sizes_seen.append(votes.dense().shape[:-1])
        return uniform_routing(votes)


@pytest.fixture
def router(restore):
    """The name of a router that the library does not come with."""
    restore(registry.ROUTERS)
    register_router("noting")(Noting)
    Noting.options_seen.clear()
    Noting.sizes_seen.clear()
    return "noting"


def test_every_registered_router_is_measured_beside_uniform_coupling(sizes):
    rows = benchmark_routers(sizes, list_routers(), 1, ticking())
    assert [row["variant"] for row in rows] == list_routers()
    assert all(row["forward ms"] == row["forward+backward ms"] == 1000 for row in rows)
    assert all(row["x uniform"] == 1 for row in rows)


def test_a_router_of_ones_own_gets_the_same_sizes_and_iterations(sizes, router):
    rows = benchmark_routers(sizes, [router], 2, ticking(), options={router: {"sharp": True}})
    assert [row["variant"] for row in rows] == [router]
    assert Noting.options_seen[-1] == (sizes.iterations, True)
    assert set(Noting.sizes_seen) == {(sizes.batch, sizes.children, sizes.parents)}
    benchmark_routers(sizes, [router], 1, ticking(), options={router: {"iterations": 2}})
    assert Noting.options_seen[-1] == (2, False)


def test_names_and_options_that_do_not_exist(sizes, router):
    assert routers_known() == list_routers()
    assert routers_known([router, "uniform", router]) == [router, "uniform"]
    with pytest.raises(UnknownNameError, match="unknown routing 'notin'; did you mean 'noting'"):
        benchmark_routers(sizes, ["notin"], 1, ticking())
    with pytest.raises(TypeError, match="routing 'noting' takes no option 'sharpe'"):
        benchmark_routers(sizes, [router], 1, ticking(), options={router: {"sharpe": True}})

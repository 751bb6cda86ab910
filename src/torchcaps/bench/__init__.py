"""Speed and memory of models of this library; `torchcaps bench` prints the tables."""

from torchcaps.bench.baselines import verify
from torchcaps.bench.layer import (
    Sizes,
    benchmark_layers,
    benchmark_routers,
    least_work,
    machine_rates,
)
from torchcaps.bench.scaling import benchmark_latency, benchmark_scaling, fitted_exponent
from torchcaps.bench.step import benchmark_steps
from torchcaps.bench.workload import Workload

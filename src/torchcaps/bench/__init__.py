"""Speed and memory, side by side, of any model of this library; `torchcaps bench` prints the tables."""

from torchcaps.bench.baselines import verify as verify
from torchcaps.bench.layer import Sizes as Sizes
from torchcaps.bench.layer import benchmark_layers as benchmark_layers
from torchcaps.bench.layer import benchmark_routers as benchmark_routers
from torchcaps.bench.layer import least_work as least_work
from torchcaps.bench.layer import machine_rates as machine_rates
from torchcaps.bench.memory import MemoryEstimate as MemoryEstimate
from torchcaps.bench.memory import benchmark_memory as benchmark_memory
from torchcaps.bench.memory import estimate_memory as estimate_memory
from torchcaps.bench.scaling import benchmark_latency as benchmark_latency
from torchcaps.bench.scaling import benchmark_scaling as benchmark_scaling
from torchcaps.bench.scaling import fitted_exponent as fitted_exponent
from torchcaps.bench.step import benchmark_steps as benchmark_steps
from torchcaps.bench.workload import Workload as Workload

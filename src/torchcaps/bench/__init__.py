"""Speed and memory, side by side, of any model of this library; `torchcaps bench` prints the tables."""

from torchcaps.bench.estimate import MemoryEstimate as MemoryEstimate
from torchcaps.bench.estimate import estimate_memory as estimate_memory
from torchcaps.bench.latency import measure_latency as measure_latency
from torchcaps.bench.layer import Sizes as Sizes
from torchcaps.bench.layer import compare_layers as compare_layers
from torchcaps.bench.memory import compare_memory as compare_memory
from torchcaps.bench.roofline import least_work as least_work
from torchcaps.bench.roofline import measured_rates as measured_rates
from torchcaps.bench.routers import compare_routers as compare_routers
from torchcaps.bench.scaling import fitted_exponent as fitted_exponent
from torchcaps.bench.scaling import measure_scaling as measure_scaling
from torchcaps.bench.step import compare_steps as compare_steps
from torchcaps.bench.subject import Subject as Subject
from torchcaps.bench.verify import verify as verify

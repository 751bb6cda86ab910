"""Peak memory of training steps, the model included."""

from typing import Any

from torchcaps.bench.timing import peak_of
from torchcaps.bench.workload import Workload, training_step

NUM_STEPS = 3  # the second is the first with the optimizer's state


def peak(workload: dict[str, Any], precision: str) -> dict[str, float]:
    """Resident memory in MiB before the model exists, and at most until it has made a few steps."""
    subject = Workload(**workload)

    def run() -> None:
        model = subject.build()
        step = training_step(model, *subject.data(model), precision)
        for _ in range(NUM_STEPS):
            step()

    return peak_of(run)

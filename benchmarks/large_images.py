"""Every model at 224 x 224 x 3 pixels and a batch of 4: what a training step takes, or a refusal.

    python benchmarks/large_images.py [MODEL ...]

Each model gets a process of its own, with a limit of 8 GB. A row has the parameters, those of the
decoder, the predicted memory, the peak of resident memory above that of a process with torch, and
seconds of two steps; or the sentence with which the training is refused, and the processor time of
that. The rows are kept in benchmarks/results/large_images.json.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import torchcaps as tc
from torchcaps.bench.timing import MIB, peak_of
from torchcaps.data import Dataset, MaskedSet
from torchcaps.errors import ArgumentError
from torchcaps.nn.generator import on_meta
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from torchcaps.training.cost import check_cost, create_estimator
from torchcaps.types import spec_of

BATCH_SIZE = 4
SIDE = 224
LIMIT = 8_000_000_000
CPU = torch.device("cpu")
RESULTS = Path(__file__).parent / "results" / "large_images.json"


def training_images(model: Any) -> Dataset:
    """As many random images as a batch, with labels or masks as the model's task needs them."""
    generator = torch.Generator().manual_seed(0)
    shape = (BATCH_SIZE, 3, SIDE, SIDE)
    images = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    labels = torch.arange(BATCH_SIZE) % getattr(model, "num_classes", BATCH_SIZE)
    classes = tuple(map(str, range(getattr(model, "num_classes", BATCH_SIZE))))
    if spec_of(model).is_dense:
        masks = (images[:, 0] > 127).to(torch.uint8)
        return MaskedSet(images, labels, classes, "random", masks=masks)
    return Dataset(images, {"label": labels}, classes, "random")


def take_steps(name: str, config: TrainConfig, images: Dataset) -> None:
    """Build the model and take two steps: in the second the optimizer has its state."""
    task = create_task(tc.create_model(name, in_chans=3, img_size=SIDE), config, images).train()
    optimizer = torch.optim.Adam(task.parameters(), fused=True)
    for step in range(2):
        generator = torch.Generator().manual_seed(step)
        batch = task.sample_batch(images, torch.arange(BATCH_SIZE), generator)
        optimizer.zero_grad(set_to_none=True)
        task.training_step(batch, 0.0)["loss"].backward()
        optimizer.step()


def measure(name: str) -> dict[str, Any]:
    """The row of a model."""
    start = time.process_time()
    config = TrainConfig.of(model=name, batch_size=BATCH_SIZE, precision="fp32")
    try:
        with on_meta():
            model = tc.create_model(name, in_chans=3, img_size=SIDE)
        images = training_images(model)
        check_cost(model, config, images, CPU, limit=LIMIT)
    except ArgumentError as error:
        seconds = time.process_time() - start
        return {"refused": str(error), "processor seconds": round(seconds, 2)}
    task = create_task(model, config, images)
    cost = create_estimator(task, config, images, CPU).estimate(BATCH_SIZE)
    start = time.perf_counter()
    marks = peak_of(lambda: take_steps(name, config, images))
    seconds = time.perf_counter() - start
    peak = marks["peak_mib"] - marks["before_mib"]
    return {
        "parameters": cost.num_parameters,
        "of the decoder": cost.num_decoder_parameters,
        "predicted MiB": None if cost.memory is None else round(cost.memory.total / MIB),
        "measured MiB": round(peak),
        "seconds": round(seconds, 1),
    }


def measure_alone(name: str) -> dict[str, Any]:
    """The row of a model, from a process of its own."""
    command = [sys.executable, __file__, "--alone", name]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (process.stdout + process.stderr).splitlines()
    if process.returncode:
        return {"failed": lines[-1] if lines else f"status {process.returncode}"}
    return json.loads(lines[-1])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--alone"]:
        print(json.dumps(measure(sys.argv[2])))
        sys.exit()
    rows = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    for model_name in sys.argv[1:] or tc.list_models():
        rows[model_name] = measure_alone(model_name)
        print(model_name, rows[model_name], flush=True)
        RESULTS.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")

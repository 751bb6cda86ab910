"""Every model at 224 x 224 x 3 pixels and a batch of 4: what two training steps in float32 take.

    python -m benchmarks.large_images [MODEL ...]

Each model gets a process of its own, which may take 8 GB of memory. A row has the parameters,
and the peak of resident memory above that of a process with torch, or how the training failed.
"""

import resource
from collections.abc import Sequence
from typing import Any

import torch

import torchcaps as tc
from benchmarks.report import Row, finish, make_parser, parse, run
from benchmarks.timing import in_fresh_process, peak_of
from torchcaps.data import Dataset
from torchcaps.tasks import create_task
from torchcaps.training import TrainConfig
from torchcaps.types import spec_of

BATCH_SIZE = 4
SIDE = 224
LIMIT = 8_000_000_000


def training_images(model: Any) -> Dataset:
    """As many random images as a batch, with labels or masks as the model's task needs them."""
    generator = torch.Generator().manual_seed(0)
    shape = (BATCH_SIZE, 3, SIDE, SIDE)
    images = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    num_classes = getattr(model, "num_classes", BATCH_SIZE)
    labels = torch.arange(BATCH_SIZE) % num_classes
    classes = tuple(map(str, range(num_classes)))
    targets = {"label": labels}
    if spec_of(model).is_dense:
        targets["mask"] = (images[:, 0] > 127).to(torch.uint8)
    return Dataset(images, targets, classes, "random")


def take_steps(name: str) -> None:
    """Build the model and take two steps: in the second the optimizer has its state."""
    model = tc.create_model(name, in_chans=3, img_size=SIDE)
    images = training_images(model)
    config = TrainConfig.of(model=name, batch_size=BATCH_SIZE, precision="fp32")
    task = create_task(model, config, images).train()
    optimizer = torch.optim.Adam(task.parameters(), fused=True)
    for step in range(2):
        generator = torch.Generator().manual_seed(step)
        (batch,) = images.batches([torch.arange(BATCH_SIZE)], task.eval_targets(images))
        batch = task.augment(batch, generator)
        optimizer.zero_grad(set_to_none=True)
        task.training_step(batch, 0.0)["loss"].backward()
        optimizer.step()


def peak(name: str) -> dict[str, float]:
    """Resident memory in MiB before and during the steps of a model, within the limit."""
    resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT))
    return peak_of(lambda: take_steps(name))


def measure(name: str) -> Row:
    """The row of a model."""
    with torch.device("meta"):
        model = tc.create_model(name, in_chans=3, img_size=SIDE)
    row: Row = {"model": name, "parameters": sum(p.numel() for p in model.parameters())}
    try:
        marks = in_fresh_process("large_images", name=name)
    except RuntimeError as error:
        return row | {"failure": str(error)}
    return row | {"MiB": round(marks["peak_mib"] - marks["before_mib"])}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = make_parser(__doc__, "large_images")
    parser.add_argument("models", nargs="*", metavar="MODEL", help="by default those of images")
    options = parse(parser, arguments)
    names = options.models or [name for name in tc.list_models() if "canonical" not in name]
    return finish(options, {"rows": [measure(name) for name in names]})


if __name__ == "__main__":
    run(main)

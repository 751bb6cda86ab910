"""Files of every classifier and of a segmentation network: size, difference, and speed.

    python -m benchmarks.export [MODEL ...] --json export.json

For each model, untrained and of its published size: parameters, seconds of processor time to
export, size of the file, largest difference from the model on 100 random images, and images per
second of ONNX Runtime beside torch, on one thread.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import torch

import torchcaps as tc
from benchmarks.report import Row, finish, make_parser, parse, run
from torchcaps.exporting import export
from torchcaps.exporting.onnx import read_onnx
from torchcaps.types import spec_of

BATCHES = (1, 64)
SECONDS = 0.5  # of each measurement, about
SEGMENTATION = "segcaps_small"
SEGMENTATION_SIZE = 32  # pixels a side: at the published 512 a batch of 64 does not fit


def exportable_models() -> list[str]:
    """Names of all classifiers, and of one segmentation network."""
    names = []
    for name in tc.list_models():
        if spec_of(tc.create_model(name)).task in ("classify", "tree"):
            names.append(name)
    return [*names, SEGMENTATION]


def images_per_second(answer: Callable[[], object], batch: int) -> float:
    """Speed of a function that answers for a batch of images: of the fastest call."""
    fastest = float("inf")
    end = process_time() + SECONDS
    answer()
    while True:
        start = process_time()
        answer()
        now = process_time()
        fastest = min(fastest, now - start)
        if now > end:
            return batch / fastest


def measure(name: str, folder: Path) -> Row:
    """The row of a model."""
    torch.manual_seed(0)
    img_size = SEGMENTATION_SIZE if name == SEGMENTATION else None
    model: Any = tc.create_model(name, img_size=img_size).eval()
    file = folder / f"{name}.onnx"
    start = process_time()
    exported = export(model, file)
    seconds = process_time() - start
    row = {
        "model": name,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "seconds": seconds,
        "MB": exported.bytes / 1e6,
        "difference": exported.difference,
    }
    answer = read_onnx(file)
    for batch in BATCHES:
        images = torch.rand(batch, *model.image_shape)
        with torch.inference_mode():
            row[f"torch, {batch}"] = images_per_second(partial(model, images), batch)
        row[f"onnx, {batch}"] = images_per_second(partial(answer, images.numpy()), batch)
    file.unlink()
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = make_parser(__doc__, "export")
    parser.add_argument("models", nargs="*", help="names of models; by default all classifiers")
    options = parse(parser, arguments)
    torch.set_num_threads(1)
    rows = []
    with TemporaryDirectory() as folder:
        for name in options.models or exportable_models():
            rows.append(measure(name, Path(folder)))
    return finish(options, {"rows": rows})


if __name__ == "__main__":
    run(main)

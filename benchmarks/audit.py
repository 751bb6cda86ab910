"""Audits of a capsule head on EfficientNet-Lite0's features of two data sets.

    python -m benchmarks.audit CIFAR10_FOLDER FASHION_MNIST_FOLDER [--threads 1]
    python -m benchmarks.audit --table

The backbone is that of `benchmarks.backbone_heads`, with its two packages. Of each set 200 training
images of a class are audited in 4 folds with 3 seeds and 5 epochs. The shifted images are 50 test
images of a class with Gaussian noise of standard deviation 0.1. `--table` prints the Markdown of
docs/audit.md from the file of the figures.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from textwrap import wrap
from typing import Any

import torch

import torchcaps as tc
from benchmarks.backbone_heads import efficientnet_lite0
from benchmarks.report import finish, make_parser, parse, run
from torchcaps.data import Dataset, few_labels, load_dataset

PER_CLASS = {"train": 200, "test": 50}
NOISE = 0.1
NAMES = ("CIFAR-10 (JPEG copy)", "Fashion-MNIST")
COLUMNS = (
    "images",
    "head",
    "weights",
    "accuracy",
    "95 %",
    "calibration error",
    "coverage",
    "lowest class",
    "set size",
)
HEADS = {
    "capsules": "capsules, dynamic routing",
    "uniform": "capsules, uniform coupling",
    "linear": "linear",
    "mlp": "plain, one hidden layer",
}


def read_part(data: str, split: str) -> Dataset:
    """Some images of each class, as floats."""
    images = load_dataset(data, split, storage="memory")
    images = images.subset(few_labels(images.labels, PER_CLASS[split]))
    return replace(images, inputs=images.float_images())


def add_noise(images: Dataset) -> Dataset:
    generator = torch.Generator().manual_seed(0)
    noise = NOISE * torch.randn(images.inputs.shape, generator=generator)
    return replace(images, inputs=(images.inputs + noise).clamp(0, 1))


def measure(data: str) -> dict[str, Any]:
    """The audit of a data set, and its seconds on the processor, with those of the features."""
    start = time.process_time()
    images = read_part(data, "train")
    backbone = efficientnet_lite0(pretrained=True)
    model = tc.models.with_backbone(
        backbone.module,
        images.num_classes,
        images.in_chans,
        images.img_size,
        mean=backbone.mean,
        std=backbone.std,
    )
    shifted = add_noise(read_part(data, "test"))
    audit = tc.audit(model, images, shifted=shifted, folds=4, epochs=5)
    figures = audit.to_dict()
    del figures["settings"]
    return figures | {"seconds": round(time.process_time() - start, 1)}


def points(share: float) -> str:
    return f"{100 * share:.1f} %"


def format_tables(figures: dict[str, Any]) -> Iterator[str]:
    """Lines of Markdown: a table and a verdict for each data set."""
    for name, audit in figures.items():
        yield f"### {name}\n"
        yield f"| {' | '.join(COLUMNS)} |"
        yield f"|{'---|' * len(COLUMNS)}"
        for row in audit["rows"]:
            cells = (
                row["images"],
                HEADS[row["head"]],
                f"{row['weights']:,}",
                points(row["accuracy"]),
                f"{100 * row['low']:.1f} to {100 * row['high']:.1f}",
                f"{row['calibration_error']:.3f}",
                points(row["coverage"]),
                points(min(row["class_coverage"].values())),
                f"{row['set_size']:.2f}",
            )
            yield f"| {' | '.join(cells)} |"
        yield ""
        for line in audit["verdict"]:
            yield from wrap(f"- {line}", 100, subsequent_indent="  ")
        minutes = audit["seconds"] / 60
        yield f"\nAll of it, the features too, took {minutes:.1f} min of one thread.\n"


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = make_parser(__doc__, "audit", threads=1)
    parser.add_argument("data", nargs="*", help="folders of CIFAR-10 and Fashion-MNIST")
    parser.add_argument("--table", action="store_true", help="print the tables of the file")
    options = parse(parser, arguments)
    if options.table:
        audits = json.loads(Path(options.output).read_text(encoding="utf-8"))["audits"]
        print("\n".join(format_tables(audits)))
        return 0
    audits = dict(zip(NAMES, map(measure, options.data), strict=True))
    options.data = NAMES
    rows = [{"data": name, "seconds": audit["seconds"]} for name, audit in audits.items()]
    return finish(options, {"rows": rows, "audits": audits})


if __name__ == "__main__":
    run(main)

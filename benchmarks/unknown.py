"""Calibration, and images of unknown classes: two classes of Fashion-MNIST are left out.

    python -m benchmarks.unknown --root data/ [--models capsnet_small cnn_matched] [--epochs 5]

Each model is trained on 1,500 images of each of eight classes. Temperature and threshold come from
its held-out images. All figures are of test images, which are read once: 8,000 of the known classes
and 2,000 of the two others. The result goes to benchmarks/results/unknown.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchcaps as tc
from torchcaps.bench.timing import machine
from torchcaps.cli.console import print_table
from torchcaps.evaluation import auroc, calibration, reliability
from torchcaps.evaluation.forward import image_activations
from torchcaps.training.calibration import read_calibration

RESULT = Path(__file__).parent / "results" / "unknown.json"
LEFT_OUT = (8, 9)  # Bag and Ankle boot
PER_CLASS = 1500
SMALL = {"match": "capsnet_small"}


def write_known(path: Path, root: str) -> None:
    """A set of the other eight classes, as an .npz of a training and a test split."""
    arrays: dict[str, Any] = {}
    for split in ("train", "test"):
        images = tc.data.load_dataset("fashion-mnist", split, root)
        known = [k for k in range(images.num_classes) if k not in LEFT_OUT]
        indices = np.concatenate([_of_class(images, k, split) for k in known])
        arrays[f"x_{split}"] = images.images[indices].numpy()
        arrays[f"y_{split}"] = np.searchsorted(known, images.labels[indices].numpy())
        arrays["classes"] = np.array([images.classes[k] for k in known])
    np.savez(path, **arrays)


def _of_class(images: tc.data.Dataset, label: int, split: str) -> np.ndarray:
    """Indices of the images of a class, of training images the first 1,500."""
    indices = np.flatnonzero(images.labels.numpy() == label)
    return indices[:PER_CLASS] if split == "train" else indices


def measure(run: tc.training.Run, root: str) -> dict[str, Any]:
    """The figures of a trained run on test images."""
    model = tc.load(run.path)
    held_out = read_calibration(run.path)
    assert held_out is not None
    known = tc.data.load_dataset(run.config.data.name, "test")
    every_class = tc.data.load_dataset("fashion-mnist", "test", root)
    is_unknown = torch.isin(every_class.labels, torch.tensor(LEFT_OUT))
    unknown = every_class.subset(is_unknown.nonzero().flatten())

    activations = image_activations(model, known.float_images())
    unknown_activations = image_activations(model, unknown.float_images())
    is_correct = activations.argmax(dim=1) == known.labels
    probability = held_out.probabilities(activations).amax(dim=1)
    unknown_probability = held_out.probabilities(unknown_activations).amax(dim=1)
    largest = activations.amax(dim=1)
    unknown_largest = unknown_activations.amax(dim=1)
    is_accepted = largest >= held_out.threshold
    before = calibration(activations, known.labels)
    return {
        "accuracy": float(is_correct.double().mean()),
        "temperature": held_out.temperature,
        "ece_length": before.length.error,
        "ece_normalized": before.normalized.error,
        "ece_calibrated": reliability(probability, is_correct).error,
        "threshold": held_out.threshold,
        "rejected_interval": [held_out.rejected_low, held_out.rejected_high],
        "known_rejected": float((~is_accepted).double().mean()),
        "unknown_rejected": float((unknown_largest < held_out.threshold).double().mean()),
        "accuracy_of_accepted": float(is_correct[is_accepted].double().mean()),
        "auroc_activation": auroc(largest, unknown_largest),
        "auroc_probability": auroc(probability, unknown_probability),
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--root", required=True, help="where the folder of Fashion-MNIST is")
    parser.add_argument("--models", nargs="+", default=["capsnet_small", "cnn_matched"])
    parser.add_argument("--epochs", type=int, default=5, help="of each training")
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    document: dict[str, Any] = {"machine": machine(), "epochs": options.epochs, "rows": []}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "known.npz"
        write_known(data, options.root)
        for name in options.models:
            run = tc.train(
                name,
                Path(folder) / name,
                data=str(data),
                model_options=SMALL if name == "cnn_matched" else {},
                epochs=options.epochs,
                batch_size=64,
                device="cpu",
            )
            document["rows"].append({"model": name, **measure(run, options.root)})
    RESULT.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    heads = ["model", "ece_length", "ece_normalized", "ece_calibrated"]
    heads += ["known_rejected", "unknown_rejected", "auroc_activation"]
    table = [heads]
    for row in document["rows"]:
        table.append([_as_text(row[head]) for head in heads])
    print_table(table)
    return 0


def _as_text(cell: Any) -> str:
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)


if __name__ == "__main__":
    raise SystemExit(main())

"""Calibration, and images of unknown classes: two classes of Fashion-MNIST are left out.

Each model is trained on 1,500 images of each of eight classes. Temperature and threshold come from
its held-out images. All figures are of test images, which are read once: 8,000 of the known classes
and 2,000 of the two others.
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import torchcaps as tc
from benchmarks.ensemble import activations_of
from benchmarks.report import Row, finish, make_parser, parse, positive, run
from torchcaps.evaluation import HeldOutCalibration, auroc, calibration, reliability

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


def measure(run: tc.training.Run, root: str) -> Row:
    """The figures of a trained run on test images."""
    model = tc.load(run.path)
    figures = json.loads((run.path / "calibration.json").read_text())
    held_out = HeldOutCalibration.from_dict(figures)
    known = tc.data.load_dataset(run.config.data.name, "test")
    every_class = tc.data.load_dataset("fashion-mnist", "test", root)
    is_unknown = torch.isin(every_class.labels, torch.tensor(LEFT_OUT))
    unknown = every_class.subset(is_unknown.nonzero().flatten())

    activations = activations_of(model, known)
    unknown_activations = activations_of(model, unknown)
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


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = make_parser(__doc__, "unknown", threads=2)
    parser.add_argument("--root", required=True, help="where the folder of Fashion-MNIST is")
    parser.add_argument("--models", nargs="+", default=["capsnet_small", "cnn_matched"])
    parser.add_argument("--epochs", type=positive, default=5, help="of each training")
    options = parse(parser, arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "known.npz"
        write_known(data, options.root)
        for name in options.models:
            trained = tc.train(
                name,
                Path(folder) / name,
                data=str(data),
                model_options=SMALL if name == "cnn_matched" else {},
                epochs=options.epochs,
                batch_size=64,
                device="cpu",
            )
            rows.append({"model": name, **measure(trained, options.root)})
    return finish(options, {"rows": rows})


if __name__ == "__main__":
    run(main)

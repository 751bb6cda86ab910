"""Put trained runs, each in a folder of its recipe's name, into the package as weights with a description."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from torchcaps.models._pretrained import FOLDER
from torchcaps.training import Run
from torchcaps.training.files import load_tensors, save_tensors

MAX_BYTES = 6_000_000  # of all files together
EMBEDDED_SETS = {"mnist": "digits"}  # data set -> images of its kind that come with the package
LICENCE = "Apache-2.0; MNIST: Yann LeCun and Corinna Cortes, CC BY-SA 3.0"


def pack(path: Path) -> Path:
    """The best model of a run, as weights of the package under the model's name."""
    run = Run.open(path)
    config, evaluation = run.config, json.loads((path / "evaluation.json").read_text())
    tensors, metadata = load_tensors(run.model_path)
    metadata["weights"] = {
        "data": config.data.name,
        "shown": EMBEDDED_SETS[config.data.name],
        "seed": config.training.seed,
        "epochs": config.training.epochs,
        "held_out": config.data.holdout,
        "accuracy": evaluation["accuracy"],
        "images": evaluation["num_samples"],
        "command": f"torchcaps train {path.name} --seed {config.training.seed}",
        "license": LICENCE,
        "torch": run.environment["torch"],
    }
    target = FOLDER / f"{metadata['model']}.safetensors"
    FOLDER.mkdir(exist_ok=True)
    save_tensors(target, tensors, metadata)
    return target


def main(runs: list[str]) -> int:
    for run in runs:
        target = pack(Path(run))
        print(f"{target.name}: {target.stat().st_size:,} bytes")
    total = sum(file.stat().st_size for file in FOLDER.glob("*.safetensors"))
    if total > MAX_BYTES:
        print(f"weights: expected at most {MAX_BYTES:,} bytes, got {total:,}", file=sys.stderr)
    return int(total > MAX_BYTES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Put trained runs, each in a folder of its recipe's name, into the package as weights with a description.

`make_weights.py --renew ROOT` keeps the weights that are there, and measures the form of their training
images and the calibration by their held-out images anew; ROOT is where the folder of MNIST is.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from torchcaps.data import load_dataset
from torchcaps.models._pretrained import FOLDER
from torchcaps.settings import TrainConfig
from torchcaps.tasks import create_task
from torchcaps.training import Run, load
from torchcaps.training.calibration import calibration_of, preprocessing
from torchcaps.training.files import load_tensors, save_tensors
from torchcaps.training.sampling import split

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


def renew(target: Path, root: str) -> Path:
    """Measure the training images and the held-out images of packaged weights anew."""
    tensors, metadata = load_tensors(target)
    origin = metadata["weights"]
    config = TrainConfig().updated(holdout=origin["held_out"], seed=origin["seed"])
    images, val_images = split(load_dataset(origin["data"], "train", root), config)
    metadata["preprocess"] = preprocessing(images).to_dict()
    task = create_task(load(target), config, images)
    metadata["calibration"] = calibration_of(task, val_images)
    save_tensors(target, tensors, metadata)
    return target


def main(words: list[str]) -> int:
    if words[0] == "--renew":
        targets = [renew(file, words[1]) for file in sorted(FOLDER.glob("*.safetensors"))]
    else:
        targets = [pack(Path(run)) for run in words]
    for target in targets:
        print(f"{target.name}: {target.stat().st_size:,} bytes")
    total = sum(file.stat().st_size for file in FOLDER.glob("*.safetensors"))
    if total > MAX_BYTES:
        print(f"weights: expected at most {MAX_BYTES:,} bytes, got {total:,}", file=sys.stderr)
    return int(total > MAX_BYTES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A folder as people have it, from the command line: 43 classes of signs, and unknown ones.

It makes a folder of 43 classes: tracks of three similar frames, from 2 to 19 tracks a class, some
in sub-folders, images of several sizes, ten damaged files. A model is trained on it, with the
frames of a track on one side of each split. Then `predict --csv --unknown-below auto` reads two
folders that nothing was trained on: new tracks of the same classes, and tracks of seven others.
"""

import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.report import Row, finish, make_parser, parse, positive, run
from torchcaps.evaluation import auroc

NUM_KNOWN = 43
NUM_UNKNOWN = 7
NUM_DAMAGED = 10
NUM_FRAMES = 3
NEW_TRACKS = 4  # of each class, to predict
TRACK = r"(track\d+)_"


def write_signs(root: Path, labels: range, first_track: int, tracks: int | None) -> list[Path]:
    """Class folders of signs, each a pattern of 5 x 5 colors under changing light.

    Args:
        root: the folder.
        labels: numbers of the classes, which also draw their patterns.
        first_track: number of the first track, which draws its light and noise.
        tracks: of each class; None for 2 to 19.

    Returns:
        The files.
    """
    files = []
    track = first_track
    for label in labels:
        pattern = np.random.default_rng(label).integers(0, 256, (5, 5, 3))
        for number in range(tracks or 2 + label * label // 100):
            random = np.random.default_rng(10_000 + track)
            light = random.uniform(0.4, 1.0)
            folder = root / f"{label:02d} sign" / ("", "night")[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            for frame in range(NUM_FRAMES):
                pixels = light * pattern + random.normal(0, 40, pattern.shape)
                side = 20 + 4 * frame
                image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
                file = folder / f"track{track:04d}_{frame}.png"
                image.resize((side, side), Image.Resampling.BICUBIC).save(file)
                files.append(file)
            track += 1
    return files


def run_command(*words: str | Path, status: int = 0) -> str:
    """What a command of torchcaps prints. It ends with this status."""
    done = subprocess.run(
        [sys.executable, "-m", "torchcaps", *map(str, words)],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode != status:
        raise SystemExit(f"torchcaps {words[0]}: status {done.returncode}, expected {status}")
    return done.stdout


def predict(run: Path, folder: Path) -> tuple[torch.Tensor, list[str], list[str]]:
    """Largest activations `[n]`, predicted labels, and the labels by the folders."""
    text = run_command("predict", run, folder, "--csv", "--unknown-below", "auto")
    rows = [*csv.DictReader(text.splitlines())]
    activations = torch.tensor([float(row["activation"]) for row in rows])
    names = [Path(row["path"]).relative_to(folder).parts[0] for row in rows]
    return activations, [row["label"] for row in rows], names


def measure(folder: Path, model: str, epochs: int) -> Row:
    """Make the folders, train, predict."""
    signs, new, unknown, run = (folder / name for name in ("signs", "new", "unknown", "run"))
    files = write_signs(signs, range(NUM_KNOWN), 0, None)
    for file in files[:: len(files) // NUM_DAMAGED][:NUM_DAMAGED]:
        file.write_bytes(file.read_bytes()[:60])
    write_signs(new, range(NUM_KNOWN), 5000, NEW_TRACKS)
    write_signs(unknown, range(NUM_KNOWN, NUM_KNOWN + NUM_UNKNOWN), 8000, 4 * NEW_TRACKS)

    settings = [
        "--img-size",
        "20",
        "--epochs",
        str(epochs),
        "--threads",
        str(torch.get_num_threads()),
        "--shift",
        "0",
    ]
    options = ["--skip-damaged", "--group-pattern", TRACK, "--class-weights", "auto"]
    run_command("train", model, "--data", signs, *settings, *options, "--output", run)
    test = json.loads((run / "evaluation.json").read_text())
    known_activation, answers, names = predict(run, new)
    unknown_activation, unknown_answers, _ = predict(run, unknown)
    is_rejected = np.array([answer == "unknown" for answer in answers])
    is_right = np.array(answers) == np.array(names)
    return {
        "model": model,
        "epochs": epochs,
        "training_images": len(files) - NUM_DAMAGED,
        "test_accuracy": test["accuracy"],
        "test_balanced_accuracy": test["balanced_accuracy"],
        "known": len(answers),
        "unknown": len(unknown_answers),
        "known_rejected": float(is_rejected.mean()),
        "accuracy_of_accepted": float(is_right[~is_rejected].mean()),
        "unknown_rejected": unknown_answers.count("unknown") / len(unknown_answers),
        "auroc": auroc(known_activation, unknown_activation),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = make_parser(__doc__, "signs", threads=1)
    parser.add_argument("--model", default="capsnet_small", help="name of the model")
    parser.add_argument("--epochs", type=positive, default=20, help="of the training")
    options = parse(parser, arguments)
    with tempfile.TemporaryDirectory() as folder:
        return finish(options, {"rows": [measure(Path(folder), options.model, options.epochs)]})


if __name__ == "__main__":
    run(main)

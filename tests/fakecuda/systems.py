"""Every system on the fake GPU; a line of JSON for each.

    PYTHONPATH=src:tests python -m fakecuda.systems capsnet resnet20 --precision bf16

A system is trained, stopped in the middle of an epoch, resumed, evaluated, asked for predictions
and items of a report, and saved and loaded again. Launches and host waits are those of a step.
`--write` makes them the budgets, which tests compare.
"""

from fakecuda import gpu  # isort: skip

import argparse
import json
import shutil
import tempfile
import traceback
import warnings
from pathlib import Path

import torch

import torchcaps as tc
from properties.variants import SMALLER
from torchcaps.reporting.subject import open_task
from torchcaps.tasks import Task
from torchcaps.training import Interrupted, TrainConfig, train
from torchcaps.training.loop import Trainer

BUDGETS = Path(__file__).with_name("budgets.json")
COUNTED_STEP = 4  # the first ones warm up
STOPPED_AFTER = 2
LEAK = 100_000  # bytes by which memory may grow in a step
NUM_IMAGES = 12  # that are evaluated
# Settings of systems that need other data than digits of one class each.
DATA = {
    "segcaps": {"data": "multi-digits-masks", "per_class": None},
    "unet": {"data": "multi-digits-masks", "per_class": None, "loss": "dice"},
    "canonical": {"data": "planes", "per_class": None},
}
# Systems beside those named by a model: other tasks, losses and ways to give the images.
FURTHER = {
    "capsnet on pairs": {"model": "capsnet", "data": "multi-digits", "per_class": None},
    "capsnet on placed digits": {"model": "capsnet", "data": "placed-digits"},
    "capsnet with everything": {
        "model": "capsnet",
        "degrees": 10.0,
        "zoom": 0.1,
        "erase": 3,
        "ema": 0.9,
        "accumulate": 2,
        "class_weights": "auto",
        "metrics": ("brier_score",),
    },
}


def settings(name, precision):
    """A tiny run of a system: six steps."""
    further = dict(FURTHER.get(name, {}))
    model = further.pop("model", name)
    options = dict(SMALLER.get(model, {}))
    for data_option in ("img_size", "num_classes", "classes"):
        options.pop(data_option, None)
    run = {
        "model": model,
        "model_options": options,
        "data": "digits",
        "per_class": 4,
        "holdout": 0.2,
        "epochs": 1,
        "batch_size": 4,
        "epoch_size": 24,
        "checkpoint_every": 3,
        "device": "cuda",
        "precision": precision,
    }
    if model.endswith(("smallnorb", "multimnist", "2019")):
        run["img_size"] = (36, 36)
    for prefix, data in DATA.items():
        if model.startswith(prefix):
            run |= data
    if model == "scae":
        run["model_options"] = {"strides": [2, 2, 1]}
    if model.startswith("unet"):
        run["model_options"] = {"channels": 2, "levels": 3}
    return TrainConfig.of(**(run | further))


def train_counted(config, folder, row):
    """Train with a stop and a resumption; the row gets launches and waits of a step."""
    number = 0
    step_of_trainer = Trainer.step

    def step(self, *arguments):
        nonlocal number
        number += 1
        if number != COUNTED_STEP:
            outcome = step_of_trainer(self, *arguments)
            row["memory"] = gpu.device.memory()[0]
            return outcome
        with gpu.counted() as counts:
            outcome = step_of_trainer(self, *arguments)
        after_step = gpu.device.memory()[0]
        row["leaked bytes"] = after_step - row["memory"]
        row["launches"] = counts.launches.total()
        row["waits"] = counts.waits.total()
        row["waiting lines"] = counts.waiting_lines
        row["most frequent"] = dict(counts.launches.most_common(8))
        return outcome

    Trainer.step = step
    try:
        steps = iter(range(1, 100))
        try:
            train(config, folder, should_stop=lambda: next(steps) == STOPPED_AFTER)
        except Interrupted:
            row["stopped"] = True
        train(config, folder, resume=True)
    finally:
        Trainer.step = step_of_trainer


def use(folder, row):
    """Evaluate, predict, show, save and load."""
    row["stage"] = "evaluate"
    task, images = open_task(folder, device="cuda")
    images = images.subset(range(NUM_IMAGES))
    result = task.evaluate(images)
    row["stage"] = "predict"
    if type(task).predict is not Task.predict:  # else the task says nothing of single pictures
        task.predict(images.float_images(range(4)).to("cuda"))
    row["stage"] = "report"
    task.report_items(result, images)
    row["stage"] = "save and load"
    model = tc.load(folder, device="cuda")
    if not all(weight.is_cuda for weight in model.state_dict().values()):
        raise AssertionError("a weight of the loaded model is not on the device")


def run_system(name, precision, folder):
    """The row of a system: "fault" is empty where nothing fell."""
    row = {"name": name, "precision": precision, "stage": "train", "fault": ""}
    try:
        train_counted(settings(name, precision), folder, row)
        use(folder, row)
    except Exception as error:
        lines = traceback.extract_tb(error.__traceback__)
        own_lines = [line for line in lines if "/torchcaps/" in line.filename]
        place = f"{own_lines[-1].filename}:{own_lines[-1].lineno}" if own_lines else "?"
        row["fault"] = f"{row['stage']}: {type(error).__name__}: {str(error)[:300]} ({place})"
    return row


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--write", action="store_true", help="write the budgets")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in options.names or [*tc.list_models(), *FURTHER]:
        folder = Path(tempfile.mkdtemp(prefix="fake-gpu-"))
        row = run_system(name, options.precision, folder / "run")
        shutil.rmtree(folder)
        print(json.dumps(row), flush=True)
        if options.write and not row["fault"]:
            write_budget(row)


def write_budget(row):
    """Make the launches and waits of a row the budget of its system."""
    budgets = json.loads(BUDGETS.read_text()) if BUDGETS.exists() else {}
    budgets[row["name"]] = {"launches": row["launches"], "waits": row["waits"]}
    BUDGETS.write_text(json.dumps(dict(sorted(budgets.items())), indent=2) + "\n")


if __name__ == "__main__":
    main()

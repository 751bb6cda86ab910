"""What every system has to do on a GPU, of host memory or real; it needs no pytest.

A system is trained, stopped in the middle of an epoch, resumed, evaluated, asked for predictions,
compared, reported on, and saved and loaded again.
"""

import traceback
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from unittest import mock

import torch

import torchcaps as tc
from models.small import SMALLER
from torchcaps.errors import RunError
from torchcaps.reporting import api, evaluated, open_task
from torchcaps.tasks import Task
from torchcaps.training import Callback, Interrupted, TrainConfig, Trainer, train

COUNTED_STEP = 4  # the first ones warm up
STOPPED_AFTER = 2
LEAK = 100_000  # bytes by which memory may grow in a step
FP16 = ("capsnet", "matrix_caps_small", "resnet20", "transforming_autoencoder")
NUM_IMAGES = 12  # of the test images, that are evaluated
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
        "epoch_size": 48,
        "degrees": 10.0,
        "zoom": 0.1,
        "erase": 3,
        "ema": 0.9,
        "accumulate": 2,
        "class_weights": "auto",
        "metrics": ("balanced_accuracy", "brier_score", "top5_accuracy"),
    },
}


class StopAfter(Callback):
    """Ends a training after so many steps."""

    def __init__(self, count):
        self.count = count

    def on_step(self, trainer, losses):
        if losses["step"] == self.count:
            trainer.stop()


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


def list_systems():
    """Names of all systems."""
    return [*tc.list_models(), *FURTHER]


def train_counted(config, folder, row, counted):
    """Train with a stop and a resumption; the row gets launches and waits of a step."""
    number = 0
    step_of_trainer = Trainer.step

    def step(self, *arguments):
        nonlocal number
        number += 1
        if number != COUNTED_STEP:
            outcome = step_of_trainer(self, *arguments)
            row["memory"] = torch.cuda.memory_allocated()
            return outcome
        with counted() as counts:
            outcome = step_of_trainer(self, *arguments)
        after_step = torch.cuda.memory_allocated()
        row["leaked bytes"] = after_step - row["memory"]
        row["launches"] = counts.launches.total()
        row["waits"] = counts.waits.total()
        row["waiting lines"] = counts.waiting_lines
        row["most frequent"] = dict(counts.launches.most_common(8))
        return outcome

    Trainer.step = step
    try:
        try:
            train(config, folder, callbacks=[StopAfter(STOPPED_AFTER)])
        except Interrupted:
            row["stopped"] = True
        train(config, folder, resume=True)
    finally:
        Trainer.step = step_of_trainer


@contextmanager
def few_images():
    """Evaluations, comparisons and reports take a few of the test images."""

    def open_few(*arguments, **options):
        task, images = open_task(*arguments, **options)
        return task, images.subset(range(NUM_IMAGES))

    with ExitStack() as stack:
        for module in (api, evaluated):
            stack.enter_context(mock.patch.object(module, "open_task", open_few))
        yield


def use(folder, row):
    """Evaluate, predict, compare, report, save and load."""
    row["stage"] = "evaluate"
    tc.evaluate(folder, device="cuda")
    row["stage"] = "predict"
    task, images = open_task(folder, device="cuda")
    if type(task).predict is not Task.predict:  # else the task says nothing of single pictures
        task.predict(images.float_images(range(4)).to("cuda"))
    row["stage"] = "compare"
    try:
        tc.compare(folder, folder, device="cuda", margin=0.5)
    except RunError as error:
        if "no right and wrong answers" not in str(error):
            raise
    row["stage"] = "report"
    if find_spec("matplotlib"):
        tc.report(folder, device="cuda", images=6, diagnose=2)
    row["stage"] = "save and load"
    model = tc.load(folder, device="cuda")
    if not all(weight.is_cuda for weight in model.state_dict().values()):
        raise AssertionError("a weight of the loaded model is not on the device")


def run_system(name, precision, folder, counted):
    """The row of a system: "fault" is empty where nothing fell.

    `counted` opens a block, and gives an object with its `launches`, `waits` and `waiting_lines`.
    """
    row = {"name": name, "precision": precision, "stage": "train", "fault": ""}
    try:
        train_counted(settings(name, precision), folder, row, counted)
        with few_images():
            use(folder, row)
    except Exception as error:
        lines = traceback.extract_tb(error.__traceback__)
        own_lines = [line for line in lines if "/torchcaps/" in line.filename]
        place = f"{own_lines[-1].filename}:{own_lines[-1].lineno}" if own_lines else "?"
        row["fault"] = f"{row['stage']}: {type(error).__name__}: {str(error)[:300]} ({place})"
    return row

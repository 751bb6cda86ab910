"""What is kept with a model of its images: their form, and a calibration by those held out."""

from dataclasses import replace

import torch

from torchcaps.data import Dataset, Preprocess
from torchcaps.data.form import measure_form
from torchcaps.evaluation import calibrate, reconstruction_distances
from torchcaps.tasks import Task, create_task
from torchcaps.tasks._base import eval_outputs
from torchcaps.training.checkpoint import load
from torchcaps.training.files import (
    CALIBRATION_FILE,
    load_tensors,
    save_tensors,
    write_json,
)
from torchcaps.training.run import Run
from torchcaps.transfer import device_of
from torchcaps.types import Json

FORMAT = 1
MEASURED = 256  # images whose form is measured
CHUNK = 256  # images that are drawn together


def preprocessing(images: Dataset, crop: int | None = None) -> Preprocess:
    """What prediction does to a picture: size and channels of training images, and their form.

    Args:
        images: to train on.
        crop: side of the square that is cut out of the middle.
    """
    preprocess = images.preprocess(images.img_size, images.in_chans, crop)
    has_pictures = type(preprocess) is Preprocess and images.maker is None and crop is None
    if not has_pictures or set(images.targets) != {"label"}:
        return preprocess
    indices = torch.linspace(0, len(images) - 1, MEASURED).long().unique()
    return replace(preprocess, form=measure_form(images.float_images(indices)))


def calibration_of(task: Task, val_images: Dataset) -> Json | None:
    """The calibration of a model on its held-out images, ready for JSON.

    Args:
        task: around the model.
        val_images: its held-out images.

    Returns:
        None for a task whose images have no class each, or for one class.
    """
    has_labels = "classes" in task.capabilities and val_images.labels.dim() == 1
    if not has_labels or task.spec.activation == "none" or val_images.num_classes < 2:
        return None
    outputs = eval_outputs(task, val_images, alone=True)
    activations = outputs.get("activation")
    if activations is None:
        return None
    errors = None
    if task.spec.decoder and task.spec.pose and task.config.task.reconstruction:
        chunks = map(val_images.float_images, torch.arange(len(val_images)).split(CHUNK))
        errors = torch.cat([reconstruction_distances(task.model, chunk) for chunk in chunks])
    return calibrate(activations, outputs["labels"], errors).to_dict()


def write_calibration(run: Run, task: Task, val_images: Dataset) -> Json | None:
    """Calibrate the best model of a run, and leave it in its folder and with its weights.

    Args:
        run: whose training has ended.
        task: it was trained for.
        val_images: its held-out images.

    Returns:
        The calibration, as `calibration_of` gives it.
    """
    model = load(run.path, device=device_of(task.model))
    calibration = calibration_of(create_task(model, task.config, val_images), val_images)
    if calibration is not None:
        write_json(run.path / CALIBRATION_FILE, {"format": FORMAT} | calibration)
        tensors, description = load_tensors(run.model_path)
        save_tensors(run.model_path, tensors, description | {"calibration": calibration})
    return calibration

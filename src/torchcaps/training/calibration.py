"""What is kept with a model of its images: their form, and a calibration by those held out."""

from dataclasses import replace

import torch

from torchcaps.data import Dataset, Preprocess
from torchcaps.data.form import measure_form
from torchcaps.evaluation import calibrate, reconstruction_distances
from torchcaps.tasks import Task
from torchcaps.tasks._base import eval_outputs
from torchcaps.types import Json

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

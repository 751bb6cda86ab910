"""The calibration of a run, in its folder: temperature and threshold from its held-out images."""

from pathlib import Path

from torchcaps.data import Dataset
from torchcaps.evaluation import HeldOutCalibration, calibrate
from torchcaps.tasks import Task, create_task
from torchcaps.tasks._base import eval_outputs
from torchcaps.training.checkpoint import load
from torchcaps.training.files import CALIBRATION_FILE, MODEL_FILE, read_json, reading, write_json
from torchcaps.training.run import Run
from torchcaps.transfer import device_of

FORMAT = 1


def write_calibration(run: Run, task: Task, val_images: Dataset) -> None:
    """Calibrate the best model of a run on its held-out images, and leave it in its folder.

    Nothing is written for a task whose images have no class each, or for one class.

    Args:
        run: whose training has ended.
        task: it was trained for.
        val_images: its held-out images.
    """
    has_labels = "classes" in task.capabilities and val_images.labels.dim() == 1
    if not has_labels or task.spec.activation == "none":
        return
    model = load(run.path, device=device_of(task.model))
    outputs = eval_outputs(create_task(model, task.config, val_images), val_images, alone=True)
    activations = outputs.get("activation")
    if activations is not None and activations.shape[1] > 1:
        calibration = calibrate(activations, outputs["labels"])
        write_json(run.path / CALIBRATION_FILE, {"format": FORMAT} | calibration.to_dict())


def read_calibration(path: str | Path) -> HeldOutCalibration | None:
    """The calibration of a run.

    Args:
        path: the run folder, or the `model.safetensors` in it.

    Returns:
        The calibration; None where there is none.

    Raises:
        RunError: it is damaged, or of another format.
    """
    path = Path(path)
    if path.is_file():
        if path.name != MODEL_FILE:
            return None
        path = path.parent
    file = path / CALIBRATION_FILE
    if not file.exists():
        return None
    with reading(file, "calibration"):
        return HeldOutCalibration.from_dict(read_json(file, FORMAT))

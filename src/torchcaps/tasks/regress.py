"""Training of regression: real numbers of an image, such as an angle or a position.

In: images with the target "value", k real numbers each, and a model with capsules. Out: the numbers
are read from poses, and a loss compares them with the targets. Either each value has a capsule, and
is the first number of its pose; or there is one capsule, and its first k numbers are the values, by
name. So a known factor of the images supervises named dimensions of a capsule.

Targets are standardized by the mean and the standard deviation of the training images alone. Both
are kept with the model, and predictions are in the units of the targets.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from torchcaps.data import Batch, Dataset
from torchcaps.errors import ArgumentError, check_shape
from torchcaps.evaluation import ValueFigures, value_figures
from torchcaps.functional.squash import full_precision, safe_norm
from torchcaps.registry import Registry
from torchcaps.settings import TaskSettings
from torchcaps.tasks._base import Outputs, Predictions, ReportItem, Task, evenly, register_task
from torchcaps.transfer import to_device, widen
from torchcaps.types import model_metadata

# A loss takes predicted and true values, both standardized, `[batch, k]`, the fraction of the
# training that is done, and the settings of the task. It returns a scalar.
Loss = Callable[[Tensor, Tensor, float, TaskSettings], Tensor]
LOSSES: Registry[Loss] = Registry("loss")
MAX_PANELS = 12  # of values in a plot
MAX_POINTS = 2000
MAX_IMAGES = 12
MIN_MARGIN = 1e-3  # of a pose's length from 1


@LOSSES.register()
def mse(predicted: Tensor, true: Tensor, *_: Any) -> Tensor:
    """Mean squared error of standardized values."""
    return F.mse_loss(predicted, true)


@LOSSES.register()
def huber(predicted: Tensor, true: Tensor, *_: Any) -> Tensor:
    """Squared error, halved, up to one standard deviation, and from there on a linear one."""
    return F.huber_loss(predicted, true)


@register_task("regress")
class Regress(Task):
    """Real numbers of an image, which poses of capsules say.

    Augmentations that a model has by default are off: a shift may change what the values say.
    """

    # Answers to the questions of the base class `Task`:
    targets = ("value",)
    score = "r2"  # the metric by which the epoch is chosen
    losses: ClassVar[Registry[Loss]] = LOSSES
    model_tasks = ("classify", "regress")  # models for which "auto" is this task
    labeled = False
    data = "images with real numbers"  # words of the error for other data

    def _setup(self, images: Dataset | None) -> None:
        if not self.spec.pose:
            raise ArgumentError(
                "task",
                "regress reads values from poses, and expected a model that declares them "
                f"(spec.pose) and has a method capsules(images), got {type(self.model).__name__}",
            )
        if images is None:
            return
        values = columns(images.targets["value"]).cpu().double()
        if not values.isfinite().all():
            raise ArgumentError("value", "expected finite numbers, got infinite ones or NaN")
        num_values = values.shape[1]
        names = images.classes
        if not len(names) == len(set(names)) == num_values:
            names = tuple(f"value {index}" for index in range(num_values))
        spread = values.std(dim=0, correction=0)
        self.target_facts = {
            "names": list(names),
            "mean": values.mean(dim=0).tolist(),
            "std": torch.where(spread > 0, spread, 1.0).tolist(),
        }

    @cached_property
    def _facts(self) -> tuple[list[str], Tensor, Tensor]:
        """What `target_facts` gave in the training of the model."""
        facts = model_metadata(self.model).targets
        if "std" not in facts:
            raise ArgumentError(
                "model", "expected one that was trained by the task regress, got another"
            )
        mean, std = torch.tensor([facts["mean"], facts["std"]], dtype=torch.float64)
        return facts["names"], mean, std

    def _standardized(self, values: Tensor) -> Float[Tensor, "batch values"]:
        """Values in units of the standard deviation of the training images, from their mean."""
        names, mean, std = self._facts
        values = widen(columns(values))
        check_shape("value", values, ("batch", "values"), values=len(names))
        return (values - to_device(mean, values)) / to_device(std, values)

    def read_values(self, images: Tensor) -> Float[Tensor, "batch values"]:
        """Standardized values of images `[batch, channels, height, width]`, from their poses."""
        pose = full_precision(self.model.capsules(images).pose)
        if self.spec.activation == "length":
            # A standardized value may be any number, and `squash` makes none of 1 or more. Its
            # exact inverse learns more slowly: see docs/decisions.md.
            pose = pose / (1 - safe_norm(pose, keepdim=True)).clamp(min=MIN_MARGIN)
        num_values = len(self._facts[0])
        _, num_capsules, dim = pose.shape
        if num_capsules == num_values:
            return pose[:, :, 0]
        if num_capsules == 1 and dim >= num_values:
            return pose[:, 0, :num_values]
        raise ArgumentError(
            "model",
            f"expected one capsule whose pose has a number for each of {num_values} values "
            f"(num_classes=1), or a capsule for each (num_classes={num_values}), got "
            f"[capsules={num_capsules}, pose={dim}]",
        )

    def training_step(self, batch: Batch, fraction_trained: float) -> Outputs:
        """The loss of a batch, of standardized values."""
        predicted = self.read_values(batch.inputs)
        true = self._standardized(batch.targets["value"]).to(predicted.dtype)
        loss = LOSSES[self.loss](predicted, true, fraction_trained, self.config.task)
        return {"loss": loss, self.loss: loss}

    def eval_step(self, batch: Batch) -> Outputs:
        """Predicted and true values in the units of the targets, `[batch, k]`."""
        return {
            "predicted": self._predict_values(batch.inputs),
            "true": widen(columns(batch.targets["value"])),
        }

    def _predict_values(self, images: Tensor) -> Float[Tensor, "batch values"]:
        """Values of images in the units of the targets."""
        values = widen(self.read_values(images))
        _, mean, std = self._facts
        return to_device(mean, values) + to_device(std, values) * values

    def compute_metrics(self, outputs: Outputs) -> dict[str, float]:
        """Loss of standardized values; R² and errors of values, see `ValueFigures`."""
        figures = self.evaluation(outputs)
        return {name: getattr(figures, name) for name in ("loss", "r2", "mae", "rmse")}

    def evaluation(self, outputs: Outputs, images: Dataset | None = None) -> ValueFigures:
        true = outputs["true"]
        predicted = outputs["predicted"]
        values = (self._standardized(predicted), self._standardized(true))
        loss = LOSSES[self.loss](*values, 1.0, self.config.task)
        return value_figures(true, predicted, self._facts[0], loss=loss.item())

    def report_items(self, evaluation: Any, images: Dataset) -> list[ReportItem]:
        """Plots of predicted against true values, and of the images with the largest errors."""
        from torchcaps import viz

        true = evaluation.true
        predicted = evaluation.predicted
        points = evenly(torch.arange(len(true)), MAX_POINTS)
        heads, rows = evaluation.table()
        value_names = list(evaluation.per_value)
        errors = self._standardized(predicted) - self._standardized(true)
        worst = errors.square().mean(dim=1).argsort(descending=True, stable=True)[:MAX_IMAGES]
        mistakes = []
        for index in worst.tolist():
            column = int(errors[index].abs().argmax())
            numbers = (true[index, column], predicted[index, column], errors[index, column])
            mistakes.append((value_names[column], *(f"{number:.4g}" for number in numbers)))
        return [
            ReportItem(
                "values",
                "Predicted against true values",
                "A point is a test image; on the line both are equal. R² is 1 without errors and 0 "
                "for predictions as good as the mean. MAE and RMSE are in the units of the values; "
                "where these differ, read them value by value.",
                viz.predicted_transformations(
                    true[points, :MAX_PANELS],
                    predicted[points, :MAX_PANELS],
                    names=viz.canvas.drawable(value_names[:MAX_PANELS]),
                ),
                f"Predicted against true values of {len(points):,} test images, a panel a value.",
                heads,
                rows,
            ),
            ReportItem(
                "errors",
                "Largest errors",
                "The test images with the largest errors, the largest first, each with the value "
                "that is furthest from the truth. The error is in standard deviations of the "
                "training images.",
                viz.image_rows({"image": images.float_images(worst).cpu()}),
                f"{len(worst)} test images.",
                ("Value", "True", "Predicted", "Error"),
                mistakes,
            ),
        ]

    @torch.inference_mode()
    def predict(self, images: Tensor) -> Predictions:
        """The values of each picture, by their names."""
        values = self._predict_values(images)
        return [dict(zip(self._facts[0], row, strict=True)) for row in values.tolist()]


def columns(values: Tensor) -> Tensor:
    """Values `[n]` or `[n, k]` as `[n, k]`."""
    return values.reshape(len(values), -1)

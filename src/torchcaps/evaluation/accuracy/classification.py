"""Accuracy, per class and overall, with everything that is read off the same activations."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypedDict

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from torchcaps.errors import check_range, check_shape
from torchcaps.evaluation.accuracy.calibration import Calibration, calibration
from torchcaps.evaluation.base import (
    EvaluationResult,
    Labels,
    Loss,
    TextTable,
    check_labels,
    check_lengths,
)
from torchcaps.evaluation.forward import proportion
from torchcaps.functional import margin_loss
from torchcaps.words import percent


class ClassAccuracy(TypedDict):
    """One class: `correct` of its `count` samples were recognized; shares are in [0, 1], and None of no samples:
    `accuracy` (recall) is that of its samples, `precision` that of the samples taken for it."""

    name: str
    accuracy: float | None
    correct: int
    count: int
    precision: float | None


@dataclass(frozen=True, eq=False)
class Evaluation(EvaluationResult):
    """What a model made of a labeled data set."""

    accuracy: float  # share of samples whose largest activation is that of their label, in [0, 1]
    error: float  # 1 - accuracy
    loss: float  # mean over samples
    num_samples: int  # n
    classes: tuple[str, ...]  # names, in the order of the activations
    per_class: list[ClassAccuracy]  # one entry a class, in the order of `classes`
    confusion: Int64[
        Tensor, "classes classes"
    ]  # counts; rows are true classes, columns predicted ones
    calibration: Calibration  # reliability tables for normalized activations and for raw lengths
    labels: Labels  # `[n]` int64 true classes
    predictions: Labels  # `[n]` int64 predicted classes
    activations: Float[Tensor, "n classes"]  # `[n, classes]` float32 lengths in [0, 1]
    loss_name: str = field(default="margin", kw_only=True)  # which loss `loss` is

    def to_dict(self) -> dict[str, Any]:
        """Everything but the tensors per sample, ready for JSON. `calibration_error` is that of the longest capsule's
        length; `calibration` holds both readings with their tables."""
        return {
            "accuracy": self.accuracy,
            "error": self.error,
            "per_class": self.per_class,
            "num_samples": self.num_samples,
            "confusion_matrix": self.confusion.tolist(),
            "loss": self.loss,
            "loss_name": self.loss_name,
            "calibration_error": self.calibration.length.error,
            "calibration": asdict(self.calibration),
            "classes": list(self.classes),
            **self.extra,
        }

    @property
    def summary(self) -> str:
        """One line."""
        calibration = self.calibration.length.error
        name = self.loss_name.replace("_", " ")
        figures = f"{name} loss {self.loss:.4f}, calibration error {calibration:.4f}"
        return f"{figures}, {self.num_samples} images{self.extra_words}"

    def table(self) -> TextTable:
        """A row for each class, and a row for all of them."""
        rows = [
            (
                row["name"],
                percent(row["accuracy"]),
                str(row["correct"]),
                str(row["count"]),
                percent(row["precision"]),
            )
            for row in self.per_class
        ]
        correct = str(sum(row["correct"] for row in self.per_class))
        total = ("all", percent(self.accuracy), correct, str(self.num_samples), "")
        return TextTable(("class", "accuracy", "correct", "count", "precision"), [*rows, total])


def score(
    activations: Float[Tensor, "n classes"],
    labels: Labels,
    classes: Sequence[str],
    *,
    loss: Loss | float | None = None,
    loss_name: str = "margin",
) -> Evaluation:
    """The figures of `evaluate` for activations `[n, classes]` in [0, 1], n at least 1, that are already there. Classes
    without a sample are allowed. Raises ValueError for shapes that do not fit, labels outside the classes, or
    activations outside [0, 1] or NaN. `loss` may be the mean loss itself; `loss_name` says which it is."""
    names = tuple(classes)
    check_labels(labels, len(names))
    check_shape("activations", activations, ("n", "classes"), n=len(labels), classes=len(names))
    activations, labels = activations.detach().float().cpu(), labels.detach().cpu()
    check_lengths(activations)
    if loss is None:
        loss = margin_loss
    mean_loss = float(loss(activations, labels)) if callable(loss) else loss
    predictions = activations.argmax(dim=1)
    confusion = torch.bincount(labels * len(names) + predictions, minlength=len(names) ** 2).view(
        len(names), -1
    )
    return Evaluation(
        accuracy=proportion(predictions == labels),
        error=proportion(predictions != labels),
        loss=mean_loss,
        loss_name=loss_name,
        num_samples=len(labels),
        classes=names,
        per_class=_per_class(confusion, names),
        confusion=confusion,
        calibration=calibration(activations, labels),
        labels=labels,
        predictions=predictions,
        activations=activations,
    )


def worst_mistakes(
    activations: Float[Tensor, "n classes"], labels: Int64[Tensor, " n *k"]
) -> Int64[Tensor, " mistakes"]:
    """Indices of the wrong answers, those first that the model was surest of.

    By the largest activation of a class that is no label, minus the smallest of a label; images may show several
    classes, with labels `[n, k]`. Raises ArgumentError for shapes that do not fit."""
    check_shape("activations", activations, ("n", "classes"), n=len(labels))
    is_label = torch.zeros_like(activations, dtype=torch.bool)
    is_label = is_label.scatter(1, labels.view(len(labels), -1), True)
    rival = activations.masked_fill(is_label, -torch.inf).amax(dim=1)
    missed = activations.masked_fill(~is_label, torch.inf).amin(dim=1)
    answers = activations.argmax(dim=1, keepdim=True)
    if labels.dim() == 2:
        answers = activations.topk(labels.shape[1], dim=1).indices
    wrong = (
        (torch.zeros_like(is_label).scatter(1, answers, True) != is_label)
        .any(dim=1)
        .nonzero()
        .squeeze(1)
    )
    return wrong[(rival - missed)[wrong].argsort(descending=True, stable=True)]


def example_indices(labels: Labels, per_class: int, seed: int) -> Int64[Tensor, " examples"]:
    """`per_class` random samples of each class present in `labels` `[n]`, class after class; all where there are fewer.
    They are the same ones for the same seed. Raises ValueError for labels of another shape, or `per_class` below 1."""
    check_shape("labels", labels, ("n",))
    check_range("per_class", per_class, low=1)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    shuffled = labels.cpu()[order]
    return torch.cat(
        [order[:0], *(order[shuffled == label][:per_class] for label in shuffled.unique())]
    )


def _per_class(confusion: Tensor, names: Sequence[str]) -> list[ClassAccuracy]:
    columns = (confusion.diagonal(), confusion.sum(dim=1), confusion.sum(dim=0))
    counts = zip(names, *(column.tolist() for column in columns), strict=True)
    return [
        ClassAccuracy(
            name=name,
            accuracy=_share(hit, true),
            correct=hit,
            count=true,
            precision=_share(hit, predicted),
        )
        for name, hit, true, predicted in counts
    ]


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None

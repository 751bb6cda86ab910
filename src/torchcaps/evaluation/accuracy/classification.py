"""Accuracy, by class and overall, and everything else that the same activations tell.

Where classes differ much in their number of images, accuracy is that of the large ones. Balanced
accuracy, macro F1 and AUROC are means over classes, defined as in scikit-learn
(`balanced_accuracy_score`, `f1_score(average="macro")`, `roc_auc_score(multi_class="ovr")`).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, TypedDict

import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from torchcaps.data import multi_hot
from torchcaps.errors import check_positive, check_shape
from torchcaps.evaluation.accuracy.calibration import Calibration, calibration
from torchcaps.evaluation.accuracy.multilabel import (
    class_areas,
    mean_of_classes,
    predicted_classes,
)
from torchcaps.evaluation.base import (
    Activations,
    EvaluationResult,
    Json,
    Labels,
    Loss,
    TextTable,
    check_scores,
    proportion,
)
from torchcaps.functional import margin_loss
from torchcaps.words import in_words, join_names, percent, rounded

FIGURES = (
    "accuracy",
    "error",
    "balanced_accuracy",
    "macro_f1",
    "auroc",
    "never_predicted",
    "per_class",
    "num_samples",
    "loss",
    "loss_name",
)


class ClassAccuracy(TypedDict):
    """Figures of one class; shares are in [0, 1], and None of no samples.

    Attributes:
        name: name of the class.
        accuracy: share of its samples that were recognized (recall).
        correct: number of its samples that were recognized.
        count: number of its samples.
        precision: share of the samples taken for it that are of it.
        f1: harmonic mean of accuracy and precision; 0 where one of them is 0, and None where no
            sample is of the class or taken for it.
        auroc: probability that its activation is larger for one of its samples than for a sample of
            another class (ties count half); None without samples of both kinds.
    """

    name: str
    accuracy: float | None
    correct: int
    count: int
    precision: float | None
    f1: float | None
    auroc: float | None


@dataclass(frozen=True, eq=False)
class Evaluation(EvaluationResult):
    """Figures of a classifier on a labeled data set.

    Attributes:
        accuracy: share of samples whose largest activation is that of their label, in [0, 1].
        error: 1 - accuracy.
        loss: mean over samples.
        num_samples: n, number of samples.
        classes: names of the classes, in the order of the activations.
        per_class: one entry a class, in the order of `classes`.
        confusion: counts; rows are true classes.
        calibration: reliability tables for normalized activations and for raw lengths.
        labels: `[n]` int64 true classes.
        predictions: `[n]` int64 predicted classes.
        activations: `[n, classes]` float32 lengths in [0, 1].
        loss_name: name of the loss that `loss` is.
        groups: `[n]` integers, equal for samples that depend on each other; None without groups.
    """

    accuracy: float
    error: float
    loss: float
    num_samples: int
    classes: tuple[str, ...]
    per_class: list[ClassAccuracy]
    confusion: Int64[Tensor, "classes classes"]
    calibration: Calibration
    labels: Labels
    predictions: Labels
    activations: Activations
    loss_name: str = field(default="margin", kw_only=True)
    groups: Labels | None = field(default=None, kw_only=True)

    def to_dict(self) -> Json:
        """Everything but the tensors per sample, ready for JSON.

        `calibration_error` is that of the longest capsule's length; `calibration` holds both
        readings with their tables.

        Returns:
            Figures by name.
        """
        return {
            **{name: getattr(self, name) for name in FIGURES},
            "confusion_matrix": self.confusion.tolist(),
            "calibration_error": self.calibration.length.error,
            "calibration": asdict(self.calibration),
            "classes": list(self.classes),
            **self.extra,
        }

    @property
    def balanced_accuracy(self) -> float:
        """Mean accuracy of the classes that have samples, in [0, 1]."""
        return self._mean("accuracy") or 0.0

    @property
    def macro_f1(self) -> float:
        """Mean F1 of the classes that have samples or were predicted, in [0, 1]."""
        return self._mean("f1") or 0.0

    @property
    def auroc(self) -> float | None:
        """Mean AUROC of each class against all others, in [0, 1]; None where one class is there."""
        return self._mean("auroc")

    def _mean(self, figure: Literal["accuracy", "f1", "auroc"]) -> float | None:
        return mean_of_classes([row[figure] for row in self.per_class])

    @property
    def never_predicted(self) -> list[str]:
        """Names of the classes that have samples, of which no sample of any class was taken for."""
        return [row["name"] for row in self.per_class if row["count"] and row["precision"] is None]

    @property
    def summary(self) -> str:
        """One line."""
        line = (
            f"{in_words(self.loss_name)} loss {self.loss:.4f}, "
            f"calibration error {self.calibration.length.error:.4f}, "
            f"{self.num_samples} images{self.extra_words}"
        )
        if self.never_predicted:
            line += f"; never predicted: {join_names(self.never_predicted)}"
        return line

    def table(self) -> TextTable:
        """A row for each class, one for their means, and one for all samples."""
        rows = [
            (
                row["name"],
                percent(row["accuracy"]),
                str(row["correct"]),
                str(row["count"]),
                percent(row["precision"]),
                rounded(row["f1"]),
                rounded(row["auroc"]),
            )
            for row in self.per_class
        ]
        ranks = (rounded(self.macro_f1), rounded(self.auroc))
        rows.append(("mean of classes", percent(self.balanced_accuracy), "", "", "", *ranks))
        num_correct = str(int(self.confusion.trace()))
        rows.append(("all", percent(self.accuracy), num_correct, str(self.num_samples), "", "", ""))
        return TextTable(
            ("class", "accuracy", "correct", "count", "precision", "F1", "AUROC"), rows
        )


def score(
    activations: Activations,
    labels: Labels,
    classes: Sequence[str],
    *,
    loss: Loss | float = margin_loss,
    loss_name: str = "margin",
) -> Evaluation:
    """Return the figures of `evaluate` for activations that are already there.

    Args:
        activations: `[n, classes]` in [0, 1], n at least 1.
        labels: `[n]` true classes; some classes may have no sample.
        classes: names of the classes.
        loss: a loss, or the mean loss itself.
        loss_name: which loss it is.

    Returns:
        All figures of the classifier, with its confusion matrix and calibration.

    Raises:
        ArgumentError: for shapes that do not fit, labels outside the classes, or activations
            outside [0, 1] or NaN.
    """
    names = tuple(classes)
    num_classes = len(names)
    check_scores(activations, labels, classes=num_classes)
    activations = activations.detach().float().cpu()
    labels = labels.cpu()
    predictions = activations.argmax(dim=1)
    cells = labels * num_classes + predictions
    confusion = torch.bincount(cells, minlength=num_classes**2).view(num_classes, -1)
    columns = zip(
        names,
        confusion.diagonal().tolist(),
        confusion.sum(dim=1).tolist(),
        confusion.sum(dim=0).tolist(),
        class_areas(activations, multi_hot(labels, num_classes).bool()),
        strict=True,
    )
    per_class = [
        ClassAccuracy(
            name=name,
            accuracy=_share(correct, count),
            correct=correct,
            count=count,
            precision=_share(correct, predicted),
            f1=_share(2 * correct, count + predicted),
            auroc=area,
        )
        for name, correct, count, predicted, area in columns
    ]
    return Evaluation(
        accuracy=proportion(predictions == labels),
        error=proportion(predictions != labels),
        loss=float(loss(activations, labels)) if callable(loss) else loss,
        loss_name=loss_name,
        num_samples=len(labels),
        classes=names,
        per_class=per_class,
        confusion=confusion,
        calibration=calibration(activations, labels),
        labels=labels,
        predictions=predictions,
        activations=activations,
    )


def worst_mistakes(
    activations: Activations,
    labels: Shaped[Tensor, " n *classes"],
) -> Int64[Tensor, " mistakes"]:
    """Return the indices of the wrong answers, those first that the model was surest of.

    The order is by the largest activation of a class that is no label, minus the smallest of a
    label.

    Args:
        activations: `[n, classes]`.
        labels: `[n]` true classes; or 0 and 1 `[n, classes]` for images of several classes.

    Returns:
        Indices of the wrong answers; none where all are right.

    Raises:
        ArgumentError: for shapes that do not fit.
    """
    check_shape("activations", activations, ("n", "classes"), n=len(labels))
    is_label = multi_hot(labels, activations.shape[1]).bool()
    rival = activations.masked_fill(is_label, -torch.inf).amax(dim=1)
    missed = activations.masked_fill(~is_label, torch.inf).amin(dim=1)
    wrong = (predicted_classes(activations, labels) != is_label).any(dim=1).nonzero().squeeze(1)
    lead = (rival - missed)[wrong]
    return wrong[lead.argsort(descending=True, stable=True)]


def example_indices(labels: Labels, per_class: int, seed: int) -> Int64[Tensor, " examples"]:
    """Return random samples of each class that is present, class after class.

    Args:
        labels: `[n]` classes.
        per_class: number of samples of each class, at least 1; all where there are fewer.
        seed: of the choice.

    Returns:
        Indices of the samples.

    Raises:
        ArgumentError: for labels of another shape, or `per_class` below 1.
    """
    check_shape("labels", labels, ("n",))
    check_positive(per_class=per_class)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    shuffled = labels.cpu()[order]
    examples = [order[shuffled == label][:per_class] for label in shuffled.unique()]
    return torch.cat(examples) if examples else order


def _share(part: int, total: int) -> float | None:
    return part / total if total else None

"""Training of images that show several classes, such as overlapping digits.

Sara Sabour, Nicholas Frosst, Geoffrey Hinton, "Dynamic Routing Between Capsules", arXiv 1710.09829,
section 6. It differs from the task of one class an image (`Classify`) in its targets, 1 for each of
the k classes of an image, and in its reconstructions, one for each of them.
"""

import torch
from torch import Tensor

from torchcaps.data import Batch, Dataset, multi_hot
from torchcaps.errors import ArgumentError
from torchcaps.evaluation import score_multilabel
from torchcaps.evaluation.base import EvaluationResult
from torchcaps.functional.squash import full_precision
from torchcaps.tasks._base import Outputs, Predictions, ReportItem, drawing_error, register_task
from torchcaps.tasks.classify import Classify
from torchcaps.types import Capsules

PRESENT = 0.5  # activation from which on a picture is said to show a class


@register_task("multilabel")
class Multilabel(Classify):
    """Several classes an image. Each labeled capsule draws what its class looks like alone.

    The label of a prediction names all classes with an activation of 0.5 or more, as "cat + dog",
    or the most active one where there are none.
    """

    # Answers to the questions of the base classes:
    model_tasks = ("classify",)  # models for which "auto" is this task, where the labels suit
    targets = ("labels",)
    data = "images of several classes each"  # words of the error for other data

    def training_step(self, batch: Batch, fraction_trained: float) -> Outputs:
        if self.spec.logits and not self.spec.multilabel:
            raise ArgumentError(
                "model",
                "images that show several classes need a network built with the option "
                "multilabel=true",
            )
        return super().training_step(batch, fraction_trained)

    def _probabilities(self, logits: Tensor) -> Tensor:
        return full_precision(logits).sigmoid()

    def _targets(self, labels: Tensor, num_classes: int) -> Tensor:
        return multi_hot(labels, num_classes).float()

    def _reconstruction_error(self, capsules: Capsules, batch: Batch) -> Tensor:
        """Squared error of the drawings of the labeled capsules, beside each class alone."""
        if "singles" not in batch.targets:
            raise ArgumentError(
                "singles", "expected what each labeled class looks like alone, got none"
            )
        pairs = zip(
            batch.targets["singles"].unbind(1), batch.targets["single_label"].T, strict=True
        )
        errors = [drawing_error(self, capsules, images, labels) for images, labels in pairs]
        return torch.stack(errors).sum()

    def evaluation(self, outputs: Outputs, images: Dataset) -> EvaluationResult:
        return score_multilabel(outputs["activation"], images.labels.cpu(), groups=images.groups)

    def predict(self, images: Tensor) -> Predictions:
        rows = super().predict(images)
        for row in rows:
            activations = row["activations"].items()
            names = [name for name, activation in activations if activation >= PRESENT]
            row["label"] = " + ".join(names or [row["label"]])
        return rows

    def report_items(self, evaluation: EvaluationResult, images: Dataset) -> list[ReportItem]:
        from torchcaps.tasks.report_items import overlaps

        if not self.spec.decoder or "single_label" not in images.targets:
            return []
        return [overlaps(self.model, images)]

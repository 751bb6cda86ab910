"""Several classes an image, such as overlapping digits (arXiv 1710.09829, section 6)."""

from torch import Tensor

from torchcaps.data import ImageSet, multi_hot
from torchcaps.errors import ArgumentError
from torchcaps.evaluation import evaluate_multilabel
from torchcaps.evaluation.forward import Progress
from torchcaps.functional import reconstruction_loss
from torchcaps.functional.squash import full_precision
from torchcaps.tasks._base import EvaluationResult, Outputs, ReportItem, register_task
from torchcaps.tasks.classify import Batch, Classify
from torchcaps.tasks.report_items import overlaps
from torchcaps.types import Capsules


@register_task("multilabel")
class Multilabel(Classify):
    """Several classes an image: a target for each class, and each labeled capsule draws what it stands for alone."""

    axes = 2

    def training_step(self, batch: Batch, progress: float) -> Outputs:
        if self.spec.logits and not self.spec.multilabel:
            needed = "a network built with the option multilabel=true"
            raise ArgumentError("model", f"images that show several classes need {needed}")
        return super().training_step(batch, progress)

    def probabilities(self, logits: Tensor) -> Tensor:
        return full_precision(logits).sigmoid()

    def wanted(self, labels: Tensor, classes: int) -> Tensor:
        return multi_hot(labels, classes)

    def drawn(self, capsules: Capsules, batch: Batch) -> Tensor:
        if batch.singles is None:
            raise ArgumentError(
                "singles", "expected what each labeled class looks like alone, got none"
            )
        error = capsules.pose.new_zeros(())
        for label, target in zip(
            batch.labels.unbind(dim=1), batch.singles.unbind(dim=1), strict=True
        ):
            error = error + reconstruction_loss(self.model.reconstruct(capsules, label), target)
        return error

    def evaluate(self, images: ImageSet, *, progress: Progress | None = None) -> EvaluationResult:
        return evaluate_multilabel(self.model, images, groups=images.draws, progress=progress)

    def report_items(self, found: EvaluationResult, images: ImageSet) -> list[ReportItem]:
        if not self.spec.decoder or images.labels.shape[1] != 2:
            return []
        return [overlaps(self.model, images)]

"""Several classes an image, such as overlapping digits (arXiv 1710.09829, section 6)."""

from torch import Tensor

from torchcaps.data import ImageSet, multi_hot
from torchcaps.errors import ArgumentError
from torchcaps.evaluation import score_multilabel
from torchcaps.functional import reconstruction_loss
from torchcaps.functional.squash import full_precision
from torchcaps.tasks._base import EvaluationResult, Outputs, ReportItem, register_task
from torchcaps.tasks.classify import Classify, ImageBatch
from torchcaps.tasks.report_items import overlaps
from torchcaps.types import Capsules


@register_task("multilabel")
class Multilabel(Classify):
    """Several classes an image: a target for each class, and each labeled capsule draws what it stands for alone."""

    label_axes = 2
    data = "images of several classes each"

    def training_step(self, batch: ImageBatch, progress: float) -> Outputs:
        if self.spec.logits and not self.spec.multilabel:
            needed = "a network built with the option multilabel=true"
            raise ArgumentError("model", f"images that show several classes need {needed}")
        return super().training_step(batch, progress)

    def probabilities(self, logits: Tensor) -> Tensor:
        return full_precision(logits).sigmoid()

    def targets(self, labels: Tensor, num_classes: int) -> Tensor:
        return multi_hot(labels, num_classes)

    def reconstruction_error(self, capsules: Capsules, batch: ImageBatch) -> Tensor:
        if batch.singles is None:
            raise ArgumentError(
                "singles", "expected what each labeled class looks like alone, got none"
            )
        error = capsules.pose.new_zeros(())
        for k in range(batch.labels.shape[1]):
            drawn = self.model.reconstruct(capsules, batch.labels[:, k])
            error = error + reconstruction_loss(drawn, batch.singles[:, k])
        return error

    def evaluation(self, outputs: Outputs, images: ImageSet) -> EvaluationResult:
        return score_multilabel(outputs["activation"], images.labels.cpu(), groups=images.draws)

    def report_items(self, evaluation: EvaluationResult, images: ImageSet) -> list[ReportItem]:
        if not self.spec.decoder or images.labels.shape[1] != 2:
            return []
        return [overlaps(self.model, images)]

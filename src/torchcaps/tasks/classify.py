"""One class an image, and its losses: margin, spread, cross-entropy, and the reconstruction beside them."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Generator, Tensor, nn

from torchcaps.data import Drawn as Batch
from torchcaps.data import ImageSet, multi_hot
from torchcaps.errors import ArgumentError
from torchcaps.evaluation import evaluate
from torchcaps.evaluation.forward import Progress, activations_of
from torchcaps.functional import margin_loss, reconstruction_loss, spread_loss
from torchcaps.functional.squash import full_precision
from torchcaps.registry import Registry
from torchcaps.settings import TaskSettings, TrainConfig
from torchcaps.tasks._base import EvaluationResult, Outputs, ReportItem, Task, register_task
from torchcaps.tasks.collapse import collapse_warnings, stuck
from torchcaps.tasks.report_items import classified
from torchcaps.types import Capsules, ModelSpec

# The paper's weight belongs to images of this many values; per value it is then the same for every image size.
PAPER_PIXELS, PAPER_WEIGHT = 784, 0.0005
MARGINS = ("margin", "two_margins")  # losses that a reconstruction goes with by default
HARD = {"present": 0.95, "absent": 0.05, "down_weight": 0.8}  # of the margin loss
SPREAD = (
    0.2,
    0.9,
)  # margin at the start and at the end; a large one from the start leaves many capsules dead


class Scores(NamedTuple):
    """What a model says of a batch."""

    activation: Float[Tensor, "batch classes"]  # lengths or probabilities in [0, 1]
    logits: (
        Float[Tensor, "batch classes"] | None
    )  # what probabilities are made of; None for a model without
    capsules: Capsules | None  # of the classes; None for a model without poses


# (scores, wanted classes `[batch]` or shares of them `[batch, classes]`, share of the training done, settings).
Loss = Callable[[Scores, Tensor, float, TaskSettings], Tensor]
LOSSES: Registry[Loss] = Registry("loss")
register_loss = LOSSES.register  # its name is one that the setting `loss` may have


@register_loss()
def cross_entropy(
    scores: Scores, wanted: Tensor, _progress: float, settings: TaskSettings
) -> Tensor:
    """Cross-entropy of a network with logits; of each class by itself, summed, where an image shows several."""
    if scores.logits is None:
        raise ArgumentError(
            "loss", "cross_entropy needs a model with logits, and this one has none"
        )
    logits, smoothing = full_precision(scores.logits), settings.label_smoothing
    if wanted.dim() == 1:
        return F.cross_entropy(logits, wanted, label_smoothing=smoothing)
    target = wanted * (1 - smoothing) + smoothing / 2
    return F.binary_cross_entropy_with_logits(logits, target, reduction="sum") / len(logits)


@register_loss()
def margin(scores: Scores, wanted: Tensor, _progress: float, _settings: TaskSettings) -> Tensor:
    """Margin loss (arXiv 1710.09829, equation 4)."""
    return margin_loss(scores.activation, wanted)


@register_loss()
def two_margins(scores: Scores, wanted: Tensor, progress: float, _settings: TaskSettings) -> Tensor:
    """Margin loss that asks for more in the second half of the training (DeepCaps, arXiv 1904.09546, their code)."""
    return margin_loss(scores.activation, wanted, **({} if progress < 0.5 else HARD))


@register_loss()
def spread(scores: Scores, wanted: Tensor, progress: float, _settings: TaskSettings) -> Tensor:
    """Spread loss with a margin that rises during training (Hinton, Sabour, Frosst, ICLR 2018, equation 3)."""
    if wanted.dim() == 2:
        raise ArgumentError(
            "loss", "the spread loss has no form for images that show several classes; take margin"
        )
    low, high = SPREAD
    return spread_loss(scores.activation, wanted, low + (high - low) * min(max(progress, 0.0), 1.0))


@register_loss()
def likelihood(scores: Scores, wanted: Tensor, _progress: float, settings: TaskSettings) -> Tensor:
    """`-log(a_t / sum_j a_j)`: cross-entropy of activations that are shares, or are taken as such."""
    if wanted.dim() == 2:
        raise ArgumentError(
            "loss", "the likelihood has no form for images that show several classes; take margin"
        )
    activation = full_precision(scores.activation)
    log = activation.clamp(min=torch.finfo(activation.dtype).tiny).log()
    return F.cross_entropy(log, wanted, label_smoothing=settings.label_smoothing)


@register_task("classify")
class Classify(Task):
    """One class an image.

    With a decoder and a margin loss, the error of the LABELLED capsule's drawing is added, whatever the most active
    one is (arXiv 1710.09829, section 4.1)."""

    losses: ClassVar[Mapping[str, Loss]] = LOSSES
    capabilities = frozenset({"classes", "decode", "routing", "sweep"})
    axes: ClassVar[int] = 1  # of labels

    def __init__(
        self, model: nn.Module, config: TrainConfig, images: ImageSet | None = None
    ) -> None:
        super().__init__(model, config, images)
        if images is not None and not self.supports(images):
            axes = images.labels.dim()
            raise ArgumentError(
                "task", f"{self.name} does not suit {images.name}, whose labels have {axes} axes"
            )
        weight = self.config.task.reconstruction or 0.0
        if weight and not self.spec.decoder and self.loss in MARGINS:
            raise ArgumentError(
                "reconstruction", f"expected 0 for a model without a decoder, got {weight}"
            )
        self.weight = weight if self.spec.decoder else 0.0
        # Losses but this one start with gradients that Adam remembers for a thousand steps.
        self.clip = 0.0 if self.loss == "spread" else 1.0

    def settings(self) -> dict[str, Any]:
        return {
            "reconstruction": PAPER_WEIGHT if self.spec.decoder and self.loss in MARGINS else 0.0
        }

    @classmethod
    def supports(cls, images: ImageSet) -> bool:
        return images.labels.dim() == cls.axes

    @classmethod
    def matches(cls, spec: ModelSpec, images: ImageSet) -> bool:
        return spec.task == "classify" and cls.supports(images)

    def sample_batch(self, images: ImageSet, indices: Tensor, generator: Generator) -> Batch:
        """Images with their labels; `singles` go the same way as the image that they make, but for its light."""
        if not self.training:
            return Batch(
                images.float_images(indices), images.labels[indices.to(images.labels.device)]
            )
        drawn = images.draw(indices, generator=generator)
        singles = drawn.singles
        layers = None if singles is None else singles.flatten(1, 2)
        image, layers = self.transforms(drawn.images, generator, layers)
        if singles is None or layers is None:
            return Batch(image, drawn.labels)
        return Batch(image, drawn.labels, layers.unflatten(1, singles.shape[1:3]).contiguous())

    def scores(self, images: Tensor) -> Scores:
        """What the model says of images."""
        if self.spec.logits:
            logits = self.model.logits(images)
            return Scores(self.model.probabilities(logits), logits, None)
        if self.spec.pose:
            capsules = self.model.capsules(images)
            return Scores(capsules.activation, None, capsules)
        outputs = self.model(images)
        if self.spec.activation == "logit":
            return Scores(self.probabilities(outputs), outputs, None)
        return Scores(outputs, None, None)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Of classes of which an image shows one."""
        return full_precision(logits).softmax(dim=1)

    def wanted(self, labels: Tensor, classes: int) -> Tensor:
        """What a loss is given for labels: themselves, or 1 for theirs where each class is judged by itself."""
        by_itself = self.spec.multilabel and self.loss == "cross_entropy"
        return multi_hot(labels.unsqueeze(1), classes) if by_itself else labels

    def training_step(self, batch: Batch, progress: float) -> Outputs:
        scores = self.scores(batch.images)
        wanted = self.wanted(batch.labels, scores.activation.shape[1])
        loss = self.losses[self.loss](scores, wanted, progress, self.config.task)
        found = {"loss": loss, self.loss: loss}
        if self.weight and scores.capsules is not None:
            found["reconstruction"] = self.drawn(scores.capsules, batch)
            found["loss"] = (
                loss
                + self.weight * PAPER_PIXELS / batch.images[0].numel() * found["reconstruction"]
            )
        found["accuracy"] = right(scores.activation, batch.labels).double().mean()
        return found | {"activation": scores.activation.detach()}

    def drawn(self, capsules: Capsules, batch: Batch) -> Tensor:
        """Summed squared error of what the labeled capsules draw, mean over the batch."""
        return reconstruction_loss(self.model.reconstruct(capsules, batch.labels), batch.images)

    def eval_step(self, batch: Batch) -> Outputs:
        scores = self.scores(batch.images)
        found = {"activation": scores.activation.float(), "labels": batch.labels}
        return found if scores.logits is None else found | {"logits": scores.logits.float()}

    def compute_metrics(self, outputs: Outputs) -> dict[str, float]:
        activation, labels = outputs["activation"], outputs["labels"]
        scores = Scores(activation, outputs.get("logits"), None)
        loss = self.losses[self.loss](
            scores, self.wanted(labels, activation.shape[1]), 1.0, self.config.task
        )
        return {"loss": loss.item(), "accuracy": right(activation, labels).double().mean().item()}

    def warnings(self, outputs: Outputs) -> list[str]:
        activation, labels = outputs["activation"], outputs["labels"]
        found = margin_loss(activation, self.wanted(labels, activation.shape[1])).item()
        return collapse_warnings(activation, labels, found)

    def detect_collapse(self, losses: Outputs) -> str | None:
        state = stuck(losses["activation"]) if self.spec.pose and not self.spec.logits else None
        return state and f"every class capsule was {state}"

    def check(self, images: ImageSet) -> Outputs:
        found = super().check(images)
        outputs = found["activation"].shape[1]
        if outputs < images.num_classes:
            raise ArgumentError(
                "model",
                f"expected an output for each of {images.num_classes} classes, got {outputs}",
            )
        return found

    def evaluate(self, images: ImageSet, *, progress: Progress | None = None) -> EvaluationResult:
        return evaluate(self.model, images, progress=progress)

    def report_items(self, found: Any, images: ImageSet) -> list[ReportItem]:
        return classified(self.model, found, images)

    @torch.inference_mode()
    def predict(self, images: Tensor) -> list[dict[str, Any]]:
        classes: tuple[str, ...] = self.model.classes
        rows = []
        for values in activations_of(self.model, images):
            order = values.argsort(descending=True).tolist()
            ranked = {classes[k]: float(values[k]) for k in order}
            rows.append(
                {
                    "label": classes[order[0]],
                    "activation": float(values[order[0]]),
                    "activations": ranked,
                }
            )
        return rows


def right(
    activation: Float[Tensor, "n classes"], labels: Int64[Tensor, " n *k"]
) -> Bool[Tensor, " n"]:
    """Whether the most active class is the label; of k labels, whether the k most active classes are exactly those."""
    if labels.dim() == 1:
        return activation.argmax(dim=1) == labels
    found = activation.topk(labels.shape[1], dim=1).indices
    return (found.unsqueeze(1) == labels.unsqueeze(2)).any(dim=2).all(dim=1)

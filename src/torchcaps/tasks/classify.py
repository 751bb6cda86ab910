"""Training of classification: one class an image, and the losses of this task.

In: images with their labels, and a model with an activation (a length or a probability) or a logit
for each class. Out: a loss in training, to which the error of a reconstruction may be added; and
metrics of held-out images. Steps return `Outputs`, tensors by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.utils._pytree import tree_map, tree_map_only

from torchcaps.data import Batch, Dataset, multi_hot
from torchcaps.data.classes import class_counts
from torchcaps.errors import ArgumentError, check_range
from torchcaps.functional import spread_loss
from torchcaps.functional.losses import margin_penalty
from torchcaps.functional.squash import full_precision
from torchcaps.registry import Registry
from torchcaps.settings import TaskSettings
from torchcaps.tasks._base import (
    Outputs,
    Predictions,
    ReportItem,
    Task,
    drawing_error,
    register_task,
)
from torchcaps.transfer import to_device, widen
from torchcaps.types import Capsules, ModelSpec, output_names

if TYPE_CHECKING:
    from torchcaps.evaluation.base import EvaluationResult

# The weight of the reconstruction in "Dynamic Routing Between Capsules" (arXiv 1710.09829), for a
# squared error summed over the 784 pixels of MNIST. Larger images get a smaller weight a pixel, so
# that the sum weighs the same.
PAPER_PIXELS = 784
PAPER_WEIGHT = 0.0005
MARGINS = ("margin", "two_margins")  # losses that a reconstruction goes with by default
HARD = {"present": 0.95, "absent": 0.05, "down_weight": 0.8}  # of the margin loss
# Margins at the start and at the end; a large one from the start leaves many capsules dead.
FIRST_MARGIN = 0.2
LAST_MARGIN = 0.9
MAX_RATIO = 3  # of the images of the largest class to those of the smallest


class Scores(NamedTuple):
    """Outputs of a model for a batch.

    Attributes:
        activation: lengths or probabilities of the classes, in [0, 1].
        logits: that the probabilities are made of; None for a model without logits.
        capsules: class capsules; None for a model without poses.
    """

    activation: Float[Tensor, "batch classes"]
    logits: Float[Tensor, "batch classes"] | None = None
    capsules: Capsules | None = None


# A loss takes scores, targets (classes `[batch]`, or 1 for the classes of an image and 0 for others
# `[batch, classes]`), the fraction of the training that is done, and the settings of the task. It
# returns a scalar, a mean over the batch.
Loss = Callable[[Scores, Tensor, float, TaskSettings], Tensor]
LOSSES: Registry[Loss] = Registry("loss")


@LOSSES.register(reads=("label_smoothing",))
def cross_entropy(
    scores: Scores, targets: Tensor, _fraction_trained: float, settings: TaskSettings
) -> Tensor:
    """Cross-entropy of a network with logits.

    Where an image shows several classes, it is that of each class by itself, summed.
    """
    if scores.logits is None:
        raise ArgumentError(
            "loss", "cross_entropy needs a model with logits, and this one has none"
        )
    logits = full_precision(scores.logits)
    smoothing = settings.label_smoothing
    if targets.dim() == 1:
        return F.cross_entropy(logits, targets, label_smoothing=smoothing)
    smooth = targets * (1 - smoothing) + smoothing / 2
    return F.binary_cross_entropy_with_logits(logits, smooth, reduction="sum") / len(logits)


@LOSSES.register()
def margin(scores: Scores, targets: Tensor, *_: Any) -> Tensor:
    """Margin loss (arXiv 1710.09829, equation 4)."""
    return margin_penalty(scores.activation, _without_shares(targets))


@LOSSES.register()
def two_margins(scores: Scores, targets: Tensor, fraction_trained: float, *_: Any) -> Tensor:
    """Margin loss that asks for more in the second half of the training (DeepCaps' code)."""
    targets = _without_shares(targets)
    if isinstance(fraction_trained, Tensor):  # on the device, for which the host does not wait
        early = margin_penalty(scores.activation, targets)
        late = margin_penalty(scores.activation, targets, **HARD)
        return torch.where(fraction_trained < 0.5, early, late)
    margins = {} if fraction_trained < 0.5 else HARD
    return margin_penalty(scores.activation, targets, **margins)


def _without_shares(targets: Tensor) -> Tensor:
    """0 and 1 as booleans, for which the margin loss takes less time; class indices as they are.

    Floats would be shares of classes to that loss, of which a training here has none.
    """
    return targets if targets.dim() == 1 else targets.bool()


@LOSSES.register()
def spread(scores: Scores, targets: Tensor, fraction_trained: float, *_: Any) -> Tensor:
    """Spread loss with a margin that rises during training (ICLR 2018, equation 3)."""
    _check_one_class(targets, "spread loss")
    if isinstance(fraction_trained, Tensor):  # on the device, for which the host does not wait
        share: Any = fraction_trained.clamp(0, 1)
    else:
        share = min(max(fraction_trained, 0.0), 1.0)
    margin = FIRST_MARGIN + (LAST_MARGIN - FIRST_MARGIN) * share
    return spread_loss(scores.activation, targets, margin)


@LOSSES.register(reads=("label_smoothing",))
def likelihood(
    scores: Scores, targets: Tensor, _fraction_trained: float, settings: TaskSettings
) -> Tensor:
    """`-log(a_t / sum_j a_j)`: cross-entropy of activations that are taken as probabilities."""
    _check_one_class(targets, "likelihood")
    activation = full_precision(scores.activation)
    log = activation.clamp(min=torch.finfo(activation.dtype).tiny).log()
    return F.cross_entropy(log, targets, label_smoothing=settings.label_smoothing)


def _check_one_class(targets: Tensor, loss: str) -> None:
    if targets.dim() == 2:
        raise ArgumentError(
            "loss", f"the {loss} has no form for images that show several classes; take margin"
        )


@register_task("classify")
class Classify(Task):
    """One class an image.

    With a decoder and a margin loss, the error of the LABELED capsule's reconstruction is added
    (arXiv 1710.09829, section 4.1). Only training images have weights; see `batch_weights`.
    """

    # Answers to the questions of the base class `Task`:
    targets: tuple[str, ...] = ("label",)
    losses: ClassVar[Mapping[str, Loss]] = LOSSES
    # "sweep": the explorer may turn, move or resize an image in steps, and show the answers.
    capabilities = frozenset({"classes", "decode", "routing", "sweep"})
    # Tasks of models for which the task "auto" is this one.
    model_tasks: ClassVar[Collection[str]] = ("classify",)
    data = "images of one class each"  # words of the error for other data
    class_weights: Tensor | None = None
    advice = "; let small classes count more (--class-weights auto)"

    def _setup(self, images: Dataset | None) -> None:
        self._has_lengths = self.spec.pose and not self.spec.logits
        self.reconstruction_weight = self.config.task.reconstruction or 0.0
        if images is None:
            return
        if self.config.task.class_weights == "auto":
            self.class_weights = balanced_weights(images.labels, images.num_classes)
            self.advice = ""
        if "weight" in images.targets:
            self.targets = (*self.targets, "weight")
        counts = class_counts(images.labels, images.num_classes)
        smallest = int(counts[counts > 0].min())
        largest = int(counts.max())
        if largest == smallest:
            self.advice = ""
        if self.score == "accuracy" and largest > MAX_RATIO * smallest:
            self.score = "balanced_accuracy"
            sizes = counts.tolist()
            self.score_reason = (
                f"classes have from {smallest:,} ({images.classes[sizes.index(smallest)]}) to "
                f"{largest:,} ({images.classes[sizes.index(largest)]}) images: the epoch is chosen "
                f"by balanced accuracy, the mean accuracy of the classes{self.advice}"
            )

    @classmethod
    def default_settings(cls, model: Any, spec: ModelSpec, loss: str) -> dict[str, Any]:
        """Defaults: classes weigh the same, and capsules with a decoder and a margin loss draw."""
        settings: dict[str, Any] = {"class_weights": "none"}
        # Other losses are clipped: their first gradients are large, and the mean squares of Adam
        # would keep them for a thousand steps.
        if loss == "spread":
            settings["clip"] = 0.0
        if spec.decoder and spec.pose and not spec.logits:
            settings["reconstruction"] = PAPER_WEIGHT if loss in MARGINS else 0.0
        return settings

    def scores(self, images: Tensor) -> Scores:
        """Outputs of the model for images `[batch, channels, height, width]`."""
        if self.spec.logits:
            logits = self.model.logits(images)
            return Scores(self.model.probabilities(logits), logits)
        if self.spec.pose:
            capsules = self.model.capsules(images)
            return Scores(capsules.activation, capsules=capsules)
        outputs = self.model(images)
        if self.spec.activation == "logit":
            return Scores(self._probabilities(outputs), outputs)
        return Scores(outputs)

    def _probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities by logits, of sum 1: an image shows one class."""
        return full_precision(logits).softmax(dim=1)

    def _targets(self, labels: Tensor, num_classes: int) -> Tensor:
        """Labels `[batch]`; 1 and 0 `[batch, classes]` where classes have a sigmoid each."""
        if self.spec.multilabel and self.loss == "cross_entropy":
            return multi_hot(labels, num_classes).float()
        return labels

    def _compute_loss(
        self,
        scores: Scores,
        targets: Tensor,
        fraction_trained: float,
        weights: Tensor | None = None,
    ) -> Tensor:
        """The loss without the reconstruction, a mean over the batch of `weights * loss`."""
        loss = self.losses[self.loss]
        if weights is None:
            return loss(scores, targets, fraction_trained, self.config.task)
        # Each image becomes a batch of its own.
        batches = tree_map_only(Tensor, lambda x: x.unsqueeze(1), (scores, targets))
        axes = tree_map(lambda leaf: None if leaf is None else 0, batches)
        image_losses = torch.func.vmap(
            lambda image, target: loss(image, target, fraction_trained, self.config.task), axes
        )
        return (weights * image_losses(*batches)).mean()

    def training_step(self, batch: Batch, fraction_trained: float) -> Outputs:
        """The loss of a batch, its terms by name, the accuracy, and activations of the classes."""
        scores = self.scores(batch.inputs)
        labels = batch.targets[self.targets[0]]
        targets = self._targets(labels, scores.activation.shape[1])
        loss = self._compute_loss(scores, targets, fraction_trained, batch_weights(self, batch))
        losses = {"loss": loss, self.loss: loss}
        if self.reconstruction_weight:
            assert scores.capsules
            error = self._reconstruction_error(scores.capsules, batch)
            _, channels, *img_size = batch.inputs.shape
            num_values = channels * math.prod(self.spec.draw_size or img_size)
            pixel_weight = self.reconstruction_weight * PAPER_PIXELS / num_values
            losses["reconstruction"] = error
            losses["loss"] = loss + pixel_weight * error
        losses["accuracy"] = widen(is_correct(scores.activation, labels)).mean()  # in float64
        losses["activation"] = scores.activation.detach()
        return losses

    def _reconstruction_error(self, capsules: Capsules, batch: Batch) -> Tensor:
        """Squared error of what the labeled capsule draws, summed over pixels, mean over images."""
        return drawing_error(self, capsules, batch.inputs, batch.targets["label"])

    def eval_step(self, batch: Batch) -> Outputs:
        """Activations and logits `[batch, classes]`, and labels."""
        scores = self.scores(batch.inputs)
        check_range("outputs of the model", scores.activation.shape[1], low=len(self.classes))
        outputs = {
            "activation": scores.activation.float(),
            "labels": batch.targets[self.targets[0]],
        }
        if scores.logits is not None:
            outputs["logits"] = scores.logits.float()
        return outputs

    def compute_metrics(self, outputs: Outputs) -> dict[str, float]:
        """Loss and accuracy of all images, by what `eval_step` gave; and the score."""
        activation = outputs["activation"]
        labels = outputs["labels"]
        targets = self._targets(labels, activation.shape[1])
        loss = self._compute_loss(Scores(activation, outputs.get("logits")), targets, 1.0)
        accuracy = is_correct(activation, labels).double().mean()
        metrics = {"loss": loss.item(), "accuracy": accuracy.item()}
        if self.score == "balanced_accuracy":
            from torchcaps.tasks.metrics import balanced_accuracy

            metrics[self.score] = balanced_accuracy(activation, labels).item()
        return metrics

    def warnings(self, outputs: Outputs, fraction_trained: float) -> list[str]:
        """Sentences about class capsules that do not tell classes apart."""
        from torchcaps.tasks.collapse import collapse_warnings, unpredicted_warnings

        activation = outputs["activation"]
        labels = outputs["labels"]
        sentences = []
        if self._has_lengths:
            loss = margin_penalty(activation, self._targets(labels, activation.shape[1])).item()
            sentences = collapse_warnings(activation, labels, loss)
        # A small class may need half of the training until it is predicted.
        if fraction_trained > 0.5:
            sentences += unpredicted_warnings(activation, labels, self.classes, self.advice)
        return sentences

    def detect_collapse(self, losses: Outputs) -> str | None:
        """A sentence where all class capsules are dead or saturated, so that training restarts."""
        if not self._has_lengths:
            return None
        from torchcaps.tasks.collapse import collapse_state

        state = collapse_state(losses["activation"])
        return state and f"every class capsule was {state}"

    def evaluation(self, outputs: Outputs, images: Dataset) -> EvaluationResult:
        from torchcaps.evaluation import score

        evaluation = score(
            outputs["activation"],
            images.labels,
            images.classes,
            loss=self.compute_metrics(outputs)["loss"],
            loss_name=self.loss,
        )
        return replace(evaluation, groups=images.groups)

    def report_items(self, evaluation: Any, images: Dataset) -> list[ReportItem]:
        from torchcaps.tasks.report_items import classified

        return classified(self.model, evaluation, images)

    @torch.inference_mode()
    def predict(self, images: Tensor) -> Predictions:
        activation = self.scores(images).activation.float().cpu()
        names = output_names(self.classes, activation.shape[1])
        rows = []
        for values, order in zip(*activation.sort(descending=True, stable=True), strict=True):
            sorted_names = list(map(names.__getitem__, order.tolist()))
            ranked = dict(zip(sorted_names, values.tolist(), strict=True))
            rows.append(
                {"label": sorted_names[0], "activation": float(values[0]), "activations": ranked}
            )
        return rows


def batch_weights(task: Classify, batch: Batch) -> Float[Tensor, " batch"] | None:
    """Weights of images in the loss: those of their classes, times their own; None for no weights.

    With `class_weights="auto"`, a class has that of `balanced_weights`.

    Args:
        task: may have weights of classes.
        batch: may have a target "weight", of each image.
    """
    weights = batch.targets.get("weight")
    if task.class_weights is None:
        return weights
    class_weights = image_weights(task.class_weights, batch.targets[task.targets[0]])
    return class_weights if weights is None else class_weights * weights


def is_correct(
    activation: Float[Tensor, "n classes"], labels: Shaped[Tensor, " n *classes"]
) -> Bool[Tensor, " n"]:
    """Whether the most active class is the label; of k labels, whether the k most active are."""
    if labels.dim() == 1:
        return activation.argmax(dim=1) == labels
    from torchcaps.evaluation.accuracy.multilabel import predicted_classes

    is_label = multi_hot(labels, activation.shape[1]).bool()
    return (predicted_classes(activation, labels) == is_label).all(dim=1)


def balanced_weights(
    labels: Shaped[Tensor, " n *classes"], num_classes: int
) -> Float[Tensor, " classes"]:
    """Weight of a class: `w_c = m / (C * m_c)`, the mean number of labels over its own.

    There are m labels, m_c of them of class c, and C classes with labels (a class without one has
    the weight 1). The mean of w over all labels is 1. It is scikit-learn's "balanced".

    Args:
        labels: of the training images: one class each, or 0 and 1 for each class.
        num_classes: number of weights.
    """
    counts = class_counts(labels, num_classes)
    mean_count = counts.sum() / (counts > 0).sum()
    return torch.where(counts > 0, mean_count / widen(counts), 1.0).float()


def image_weights(
    class_weights: Float[Tensor, " classes"], labels: Shaped[Tensor, " batch *classes"]
) -> Float[Tensor, " batch"]:
    """Weight of an image: that of its class; of several classes their mean."""
    weights = to_device(class_weights, labels.device)
    if labels.dim() == 1:
        return weights[labels]
    return (weights * labels).sum(dim=1) / labels.sum(dim=1)

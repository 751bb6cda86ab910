"""A class for each pixel: masks as data and as figures.

Losses as in SegCaps' code (LaLonde, Bagci, arXiv 1804.04241), which knows one class; its soft Dice
takes logits for probabilities there, and not here.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from torchcaps.data import ImageBatch, ImageSet, MaskedSet
from torchcaps.distributed import all_reduce_sum
from torchcaps.errors import check_shape
from torchcaps.evaluation.accuracy.pixels import (
    MaskFigures,
    PixelCounts,
    mask_figures,
    pixel_counts,
)
from torchcaps.evaluation.forward import device_of, evaluating
from torchcaps.functional.squash import full_precision
from torchcaps.registry import Registry
from torchcaps.settings import TrainConfig
from torchcaps.tasks._base import (
    BATCH,
    EvaluationResult,
    Outputs,
    ReportItem,
    Task,
    register_task,
)
from torchcaps.tasks.masks import Masks, PerClass, most_probable
from torchcaps.tasks.report_items import evenly
from torchcaps.types import ModelSpec

PIXELS = 1 << 18  # of a batch that is not trained with: 16 images of 128 x 128
SMOOTH = 1e-5  # of soft Dice
PRESENT = 0.9  # least length of a class that is there, in the margin loss
ABSENT = 0.1  # largest length of a class that is not
PAPER_PIXELS = 784
RECONSTRUCTION_WEIGHT = 0.1 / PAPER_PIXELS  # of a summed squared error: 0.1 of the mean
NUM_EXAMPLES = 10  # test images in a figure


class PixelPrediction(NamedTuple):
    """What a model says of the classes of each pixel, the background left out.

    Attributes:
        probabilities: in [0, 1]: lengths, or sigmoids of logits.
        logits: None for a model of lengths.
    """

    probabilities: PerClass
    logits: PerClass | None = None


# (prediction, 1 where a pixel is of a class, weights of the classes `[classes, 1, 1]`).
Loss = Callable[[PixelPrediction, PerClass, Tensor], Tensor]
LOSSES: Registry[Loss] = Registry("loss")


@LOSSES.register()
def weighted_cross_entropy(
    prediction: PixelPrediction, targets: PerClass, class_weights: Tensor
) -> Tensor:
    """Cross-entropy of one class a pixel, by odds `p / (1 - p)`, those of the background being 1.

    Of one class this is `-w T log p - (1 - T) log(1 - p)`. Judged each by itself, several classes
    that look alike would all stay below one half, and a network would find nothing.
    """
    logits = prediction.logits
    if logits is None:
        p = prediction.probabilities.clamp(1e-7, 1 - 1e-7)
        logits = p.log() - (1 - p).log()
    log_p = F.log_softmax(F.pad(logits, (0, 0, 0, 0, 1, 0)), dim=1)
    background = (1 - targets.sum(dim=1)) * log_p[:, 0]
    return -(background + (class_weights * targets * log_p[:, 1:]).sum(dim=1)).mean()


@LOSSES.register()
def cross_entropy(prediction: PixelPrediction, targets: PerClass, class_weights: Tensor) -> Tensor:
    """The same, all classes alike."""
    return weighted_cross_entropy(prediction, targets, torch.ones_like(class_weights))


@LOSSES.register()
def dice(prediction: PixelPrediction, targets: PerClass, _class_weights: Tensor) -> Tensor:
    """One minus the soft Dice of each class over the batch, a mean over the classes that it shows.

    In training the batch is that of all processes; else each of them has batches of its own.
    """
    p = prediction.probabilities
    maps = (p * targets, p, targets)
    sums = torch.stack([x.sum(dim=(0, 2, 3)) for x in maps])
    if sums.requires_grad:
        sums = all_reduce_sum(sums)
    common, predicted, true = sums
    losses = 1 - (2 * common + SMOOTH) / (predicted + true + SMOOTH)
    is_present = true > 0
    return (losses * is_present).sum() / is_present.sum().clamp(min=1)


@LOSSES.register()
def weighted_margin(
    prediction: PixelPrediction, targets: PerClass, class_weights: Tensor
) -> Tensor:
    """`w T max(0, 0.9 - p)^2 / 2 + (1 - T) max(0, p - 0.1)^2 / 4`, summed over classes.

    A mean over the pixels of the batch.
    """
    p = prediction.probabilities
    missing = (PRESENT - p).clamp(min=0).square()
    excess = (p - ABSENT).clamp(min=0).square()
    errors = 0.5 * class_weights * targets * missing + 0.25 * (1 - targets) * excess
    return errors.sum(dim=1).mean()


@LOSSES.register()
def margin(prediction: PixelPrediction, targets: PerClass, class_weights: Tensor) -> Tensor:
    """The same, all classes alike."""
    return weighted_margin(prediction, targets, torch.ones_like(class_weights))


@register_task("segment")
class Segment(Task):
    """A class for each pixel, from masks.

    A class is found where it is the most probable one and above one half. With a decoder, capsules
    of the true class of each pixel draw the image, which is black where there is background.

    Attributes:
        class_weights: `[classes - 1, 1, 1]`: pixels of other classes for each pixel of a class.
        missing_classes: those that no mask shows.
    """

    score = "dice"
    losses: ClassVar[Registry[Loss]] = LOSSES
    default_spec = ModelSpec(is_dense=True, task="segment")
    capabilities = frozenset({"sweep"})
    is_dense = True
    data = "images with masks"

    def __init__(
        self, model: nn.Module, config: TrainConfig, images: ImageSet | None = None
    ) -> None:
        super().__init__(model, config, images)
        weight = self.config.task.reconstruction or 0.0
        self.reconstruction_weight = weight if self.spec.decoder else 0.0
        self.class_weights = torch.ones(1, 1, 1)
        self.missing_classes: list[str] = []
        self.num_foreground: int | None = None
        if isinstance(images, MaskedSet):
            self.num_foreground = images.num_classes - 1
            self.eval_batch_size = max(1, min(BATCH, PIXELS // images.masks[0].numel()))
            all_counts = images.masks.flatten().bincount(minlength=images.num_classes)
            counts = all_counts[1:].double()
            weights = (images.masks.numel() - counts) / counts.clamp(min=1)
            self.class_weights = torch.where(counts > 0, weights, 1.0).float().view(-1, 1, 1)
            missing = (counts == 0).nonzero().flatten().tolist()
            self.missing_classes = [images.classes[1 + k] for k in missing]

    @classmethod
    def default_settings(cls, model: Any, spec: ModelSpec, loss: str) -> dict[str, Any]:
        return {"reconstruction": RECONSTRUCTION_WEIGHT if spec.decoder else 0.0}

    @classmethod
    def supports(cls, images: ImageSet) -> bool:
        return isinstance(images, MaskedSet)

    def sample_batch(self, images: Any, indices: Tensor, generator: Generator) -> ImageBatch:
        """Images with their masks, which move with them.

        A pixel takes the class that most of it is made from.
        """
        if not self.training:
            index = indices.to(images.masks.device)
            masks = images.masks[index].long()
            return ImageBatch(images.float_images(index), images.labels[index], masks=masks)
        batch = images.sample_batch(indices, generator=generator)
        targets = foreground_targets(batch.masks, images.num_classes - 1)
        pixels, layers = self.transforms(batch.images, generator, targets)
        assert layers is not None
        background = 1 - layers.sum(dim=1, keepdim=True)
        masks = torch.cat([background, layers], dim=1).argmax(dim=1)
        return ImageBatch(pixels, batch.labels, masks=masks)

    def predict_pixels(self, images: Tensor) -> PerClass:
        """Probabilities of every class but the background, `[n, classes - 1, height, width]`."""
        return self.pixel_prediction(images).probabilities

    def pixel_prediction(self, images: Tensor) -> PixelPrediction:
        """What the model says of images, in full precision."""
        if self.spec.logits:
            logits = full_precision(self.model.logits(images))
            return PixelPrediction(self.model.probabilities(logits), logits)
        outputs = full_precision(self.model(images))
        if self.spec.activation == "logit":
            return PixelPrediction(outputs.sigmoid(), outputs)
        return PixelPrediction(outputs)

    def compute_loss(self, prediction: PixelPrediction, masks: Masks) -> Tensor:
        """The loss of a batch without the reconstruction, a scalar.

        Args:
            prediction: of the model.
            masks: class of each pixel, 0 for background.
        """
        targets = foreground_targets(masks, prediction.probabilities.shape[1])
        return LOSSES[self.loss](prediction, targets, self.class_weights.to(targets.device))

    def training_step(self, batch: ImageBatch, fraction_trained: float) -> Outputs:
        masks: Any = batch.masks
        if not self.reconstruction_weight:
            loss = self.compute_loss(self.pixel_prediction(batch.images), masks)
            return {"loss": loss, self.loss: loss}
        capsules = self.model.capsules(batch.images)
        prediction = PixelPrediction(capsules.activation.movedim(-1, 1))
        loss = self.compute_loss(prediction, masks)
        drawing = full_precision(self.model.reconstruct(capsules, masks))
        foreground = batch.images * (masks > 0).unsqueeze(1)
        error = (drawing - foreground).square().mean()
        total = loss + self.reconstruction_weight * PAPER_PIXELS * error
        return {"loss": total, self.loss: loss, "reconstruction": error}

    def eval_step(self, batch: ImageBatch) -> Outputs:
        """Counts of pixels `[batch, 7, classes - 1]`, the share of right pixels, and the loss."""
        masks: Any = batch.masks
        prediction = self.pixel_prediction(batch.images)
        num_images, height, width = masks.shape
        num_foreground = self.num_foreground or prediction.probabilities.shape[1]
        check_shape(
            "model",
            prediction.probabilities,
            ("batch", "classes without background", "height", "width"),
            **{"classes without background": num_foreground, "height": height, "width": width},
        )
        predicted = most_probable(prediction.probabilities)
        counts = pixel_counts(predicted, masks, 1 + num_foreground)
        return {
            "counts": torch.stack(counts, dim=1),
            "right": (predicted == masks).flatten(1).double().mean(dim=1),
            "loss": self.compute_loss(prediction, masks).expand(num_images),
        }

    def compute_metrics(self, outputs: Outputs) -> dict[str, float]:
        num_classes = 1 + outputs["counts"].shape[2]
        figures = _mask_figures(outputs, tuple(map(str, range(num_classes))))
        return {
            "loss": outputs["loss"].double().mean().item(),
            "dice": figures.dice,
            "iou": figures.iou,
            "boundary": figures.boundary,
        }

    def warnings(self, outputs: Outputs) -> list[str]:
        sentences = [
            f"no mask to train with shows the class {name!r}" for name in self.missing_classes
        ]
        if not PixelCounts(*outputs["counts"].unbind(dim=1)).predicted.any():
            sentences.append("the model takes every pixel for background")
        return sentences

    def evaluation(self, outputs: Outputs, images: ImageSet) -> EvaluationResult:
        return _mask_figures(outputs, images.classes)

    def report_items(self, evaluation: EvaluationResult, images: Any) -> list[ReportItem]:
        from torchcaps.viz.tiles import masks

        examples = images.subset(evenly(torch.arange(len(images)), NUM_EXAMPLES))
        device = device_of(self.model)
        with evaluating(self):
            probabilities = [
                self.predict_pixels(image.to(device)) for image in examples.float_images().split(1)
            ]
        predicted = most_probable(torch.cat(probabilities)).cpu()
        examples = examples.to("cpu")
        heads, rows = evaluation.table()
        return [
            ReportItem(
                "masks",
                "Masks",
                "Above: test images. Middle: with their true masks. Below: with the masks that "
                "the model finds.",
                masks(examples.float_images(), examples.masks, predicted, classes=images.classes),
                "Test images, and the same with true and with predicted masks as colors over them.",
                heads,
                tuple(rows),
            )
        ]


def _mask_figures(outputs: Outputs, classes: tuple[str, ...]) -> MaskFigures:
    counts = PixelCounts(*outputs["counts"].unbind(dim=1))
    return mask_figures(counts, outputs["right"], classes)


def foreground_targets(masks: Masks, num_foreground: int) -> PerClass:
    """1 where a pixel is of a class, `[batch, classes, height, width]`, the background left out."""
    classes = torch.arange(1, 1 + num_foreground, device=masks.device).view(-1, 1, 1)
    return (masks.unsqueeze(1) == classes).float()

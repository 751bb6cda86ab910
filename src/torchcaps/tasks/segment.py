"""Training of segmentation: a class for each pixel of an image.

Rodney LaLonde, Ulas Bagci, "Capsules for Object Segmentation" (SegCaps), MIDL 2018, arXiv
1804.04241; the losses are those of the authors' code, which knows one class beside the background.
Theirs computes soft Dice from logits, as if they were probabilities; here it gets probabilities.

In: a model that gives a map of probabilities for each foreground class, that is for each class but
class 0, the background; and images with masks, which hold the class of each pixel:

    `Masks`      class of each pixel, 0 for background, `[batch, height, width]`
    `ClassMaps`  a number for each foreground class and pixel, `[batch, classes - 1, height, width]`

Out: a loss in training; and metrics of held-out images: Dice, intersection over union (IoU), and
"boundary", the agreement of boundaries. This is the harmonic mean of two shares: of the pixels on
predicted boundaries that are near true ones, and the reverse. Near is within 2 pixels to each side
(`TOLERANCE` in `evaluation.accuracy.pixels`). Steps return `Outputs`, tensors by name.

Symbols of the losses, at one pixel and for one foreground class:

    p  predicted probability of the class
    T  1 where the pixel is of the class, else 0 ("targets")
    w  weight of the class: number of pixels of other classes / number of pixels of the class; 1 with
       the setting `class_weights="none"`
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from torchcaps.data import Batch, Dataset
from torchcaps.data.augment.transforms import one_hot_foreground
from torchcaps.distributed import all_reduce_sum
from torchcaps.errors import check_shape
from torchcaps.evaluation.accuracy.pixels import (
    MaskFigures,
    PixelCounts,
    mask_figures,
    pixel_counts,
)
from torchcaps.evaluation.base import EvaluationResult
from torchcaps.functional.squash import full_precision
from torchcaps.registry import Registry
from torchcaps.tasks._base import BATCH, Outputs, ReportItem, Task, evenly, register_task
from torchcaps.tasks.masks import ClassMaps, Masks, masks_from_probabilities
from torchcaps.transfer import device_of, evaluating, to_device, widen
from torchcaps.types import ModelSpec

MAX_EVAL_PIXELS = 1 << 18  # of a batch that is not trained with: 16 images of 128 x 128
DICE_SMOOTHING = 1e-5  # added above and below the fraction of soft Dice
PRESENT = 0.9  # margin loss: p should be at least this where the class is
ABSENT = 0.1  # margin loss: p should be at most this where it is not
# Weight of the mean squared error of a reconstruction: the default of `--recon_wei` in main.py of
# SegCaps' code. (Until March 2020 it was 131.072, which is still there in a comment.)
MEAN_ERROR_WEIGHT = 0.1
# The setting `reconstruction` has another unit, the same in all tasks: it is the weight of an error
# summed over the 784 pixels of MNIST's images, as in "Dynamic Routing Between Capsules" (CapsNet,
# arXiv 1710.09829). Such a sum is 784 times the mean error.
MNIST_PIXELS = 784
NUM_EXAMPLES = 10  # test images in a plot


class PixelPrediction(NamedTuple):
    """Prediction of a model for each pixel and foreground class.

    Attributes:
        probabilities: p, in [0, 1]: lengths of capsules, or probabilities made of logits.
        logits: log(p / (1 - p)), positive where p is above 1/2; None for a model of lengths.
    """

    probabilities: ClassMaps
    logits: ClassMaps | None = None


# A loss takes a prediction, the targets T, and the class weights w `[classes - 1, 1, 1]`. It
# returns a scalar.
Loss = Callable[[PixelPrediction, ClassMaps, Tensor], Tensor]
LOSSES: Registry[Loss] = Registry("loss")  # losses of this task, by the names of their functions


@LOSSES.register(reads=("class_weights",))
def cross_entropy(prediction: PixelPrediction, targets: ClassMaps, class_weights: Tensor) -> Tensor:
    """Weighted cross-entropy of a softmax over all classes, a mean over pixels.

    The logit of a foreground class is log(p / (1 - p)), that of the background 0. With one
    foreground class the loss of a pixel is `-w T log p - (1 - T) log(1 - p)`.

    In a softmax the classes of a pixel compete. With a separate cross-entropy for each class, p
    would stay below 1/2 for all of several classes that look alike. The network would then predict
    background for their pixels.
    """
    logits = prediction.logits
    if logits is None:
        p = prediction.probabilities.clamp(1e-7, 1 - 1e-7)
        logits = p.log() - (1 - p).log()
    # A map of zeros before the others is the background's.
    log_p = F.log_softmax(F.pad(logits, (0, 0, 0, 0, 1, 0)), dim=1)
    background = (1 - targets.sum(dim=1)) * log_p[:, 0]
    foreground = (class_weights * targets * log_p[:, 1:]).sum(dim=1)
    return -(background + foreground).mean()


@LOSSES.register()
def dice(prediction: PixelPrediction, targets: ClassMaps, _class_weights: Tensor) -> Tensor:
    """Soft Dice loss `1 - 2 sum(p T) / (sum(p) + sum(T))`, sums over all pixels of the batch.

    `DICE_SMOOTHING` is added above and below. The loss is a mean over the foreground classes that
    the batch shows. In training the batch is that of all processes.
    """
    p = prediction.probabilities
    maps = (p * targets, p, targets)
    sums = torch.stack([x.sum(dim=(0, 2, 3)) for x in maps])  # [3, classes - 1]
    # Without gradients, in evaluation, each process has a number of batches of its own. It would
    # wait for sums of processes that have no more.
    if sums.requires_grad:
        sums = all_reduce_sum(sums)
    intersection, predicted, true = sums
    losses = 1 - (2 * intersection + DICE_SMOOTHING) / (predicted + true + DICE_SMOOTHING)
    is_present = true > 0
    return (losses * is_present).sum() / is_present.sum().clamp(min=1)


@LOSSES.register(reads=("class_weights",))
def margin(prediction: PixelPrediction, targets: ClassMaps, class_weights: Tensor) -> Tensor:
    """Margin loss `w T max(0, 0.9 - p)^2 / 2 + (1 - T) max(0, p - 0.1)^2 / 4`.

    It is a sum over classes and a mean over pixels.
    """
    p = prediction.probabilities
    missing = (PRESENT - p).clamp(min=0).square()
    excess = (p - ABSENT).clamp(min=0).square()
    losses = 0.5 * class_weights * targets * missing + 0.25 * (1 - targets) * excess
    return losses.sum(dim=1).mean()


@register_task("segment")
class Segment(Task):
    """A class for each pixel, learned from masks.

    The class of a pixel is the most probable one if its p is above 1/2, that is if its logit is
    positive; else the pixel is background. A model with a decoder also learns to draw the image
    from the capsules of the true class of each pixel, black where the true class is background.

    Attributes:
        spec: what the model declares, such as whether it has logits and a decoder.
        config: settings of the run, with defaults where the run leaves them open.
        loss: name of the loss in `LOSSES`.
        reconstruction_weight: the setting, in the unit of `MNIST_PIXELS`; 0 without a decoder.
        class_weights: w, `[classes - 1, 1, 1]`: number of other pixels for each pixel of a class,
            and 1 for a class that no mask shows; 1 without images, and with
            `class_weights="none"`.
        missing_classes: names of the classes that no mask of these images shows.
        eval_batch_size: images of a batch that is not trained with.
    """

    # Answers to the questions of the base class `Task`:
    targets = ("mask",)
    score = "dice"  # the metric by which the epoch is chosen
    losses: ClassVar[Registry[Loss]] = LOSSES
    default_spec = ModelSpec(is_dense=True, task="segment")  # of a model that declares nothing
    # "sweep": the explorer may run a model on an image that it turns, moves or resizes in steps.
    capabilities = frozenset({"sweep"})
    is_dense = True  # its models predict each pixel
    data = "images with masks"  # words of the error for other data
    class_weights = torch.ones(1, 1, 1)
    missing_classes: Sequence[str] = ()

    def _setup(self, images: Dataset | None) -> None:
        self.reconstruction_weight = self.config.task.reconstruction or 0.0
        if images is None:
            return
        masks = images.targets["mask"]
        # At most as many images as in other tasks (BATCH), fewer if they are large.
        self.eval_batch_size = max(1, min(BATCH, MAX_EVAL_PIXELS // masks[0].numel()))
        class_sizes = widen(masks.flatten().bincount(minlength=images.num_classes)[1:])
        is_missing = class_sizes == 0
        self.missing_classes = [
            images.classes[1 + k] for k in is_missing.nonzero().flatten().tolist()
        ]
        if self.config.task.class_weights == "auto":
            num_pixels = masks.numel()
            if "size" in images.targets:
                num_pixels = int(images.targets["size"].prod(dim=1).sum())
            weights = (num_pixels - class_sizes) / class_sizes.clamp(min=1)
            self.class_weights = torch.where(is_missing, 1.0, weights).float().view(-1, 1, 1)

    @classmethod
    def default_settings(cls, model: Any, spec: ModelSpec, loss: str) -> dict[str, Any]:
        """Settings of a run that leaves them open."""
        settings: dict[str, Any] = {}
        if "class_weights" in LOSSES.fact(loss):
            settings["class_weights"] = "auto"
        if spec.decoder:
            settings["reconstruction"] = MEAN_ERROR_WEIGHT / MNIST_PIXELS
        return settings

    def predict_pixels(self, images: Tensor) -> ClassMaps:
        """Probabilities of the foreground classes of images `[n, channels, height, width]`."""
        return self.pixel_prediction(images).probabilities

    def pixel_prediction(self, images: Tensor) -> PixelPrediction:
        """The model's prediction for images, in float32 where the model computes in half."""
        if self.spec.logits:  # the model has a method that returns logits
            logits = full_precision(self.model.logits(images))
            return PixelPrediction(self.model.probabilities(logits), logits)
        maps = full_precision(self.model(images))
        if self.spec.activation == "logit":  # its usual outputs are logits
            return PixelPrediction(maps.sigmoid(), maps)
        return PixelPrediction(maps)

    def compute_loss(self, prediction: PixelPrediction, masks: Masks) -> Tensor:
        """The loss of a batch without the reconstruction, a scalar.

        Args:
            prediction: of the model.
            masks: true class of each pixel.
        """
        targets = one_hot_foreground(masks, prediction.probabilities.shape[1])
        return LOSSES[self.loss](prediction, targets, to_device(self.class_weights, targets.device))

    def training_step(self, batch: Batch, fraction_trained: float) -> Outputs:
        """The loss of a batch, and its terms without their weights.

        Returns:
            "loss": what is minimized, with the reconstruction if it has a weight. By the name of
            the loss in `LOSSES`: that of the masks. "reconstruction", if weighted: mean error.
        """
        masks = batch.targets["mask"].long()
        if not self.reconstruction_weight:
            mask_loss = self.compute_loss(self.pixel_prediction(batch.inputs), masks)
            return {"loss": mask_loss, self.loss: mask_loss}

        # Activations of capsules are `[batch, height, width, classes - 1]`, as `pixel_prediction`
        # takes them: the one dense model with a decoder, SegCaps, gives lengths in float32.
        capsules = self.model.capsules(batch.inputs)
        prediction = PixelPrediction(capsules.activation.movedim(-1, 1))
        mask_loss = self.compute_loss(prediction, masks)
        drawings = full_precision(self.model.reconstruct(capsules, masks))
        foreground = batch.inputs * (masks > 0).unsqueeze(1)
        error = (drawings - foreground).square().mean()
        total = mask_loss + self.reconstruction_weight * MNIST_PIXELS * error
        return {"loss": total, self.loss: mask_loss, "reconstruction": error}

    def eval_step(self, batch: Batch) -> Outputs:
        """What the metrics are made from, for each image of a batch.

        Returns:
            "counts": numbers of pixels, `[batch, 7, classes - 1]`, in the order of `PixelCounts`:
            of the intersection, the predicted and the true mask; of the predicted and the true
            boundary; of the predicted boundary near the true one, and the reverse.
            "pixel_accuracy": share of pixels with the true class, `[batch]`.
            "loss": of all masks of the batch, the same for all its images, `[batch]`.
        """
        masks = batch.targets["mask"].long()
        prediction = self.pixel_prediction(batch.inputs)
        num_images, height, width = masks.shape
        check_shape(
            "model",
            prediction.probabilities,
            ("batch", "foreground_classes", "height", "width"),
            foreground_classes=len(self.classes) - 1,
            height=height,
            width=width,
        )
        predicted = masks_from_probabilities(prediction.probabilities)
        return {
            "counts": torch.stack(pixel_counts(predicted, masks, len(self.classes)), dim=1),
            "pixel_accuracy": widen((predicted == masks).flatten(1)).mean(dim=1),
            "loss": self.compute_loss(prediction, masks).expand(num_images),
        }

    def compute_metrics(self, outputs: Outputs) -> dict[str, float]:
        """Metrics of all images, by what `eval_step` gave: "loss", and means over classes."""
        figures = self.evaluation(outputs)
        return {
            "loss": outputs["loss"].double().mean().item(),
            "dice": figures.dice,
            "iou": figures.iou,
            "boundary": figures.boundary,
        }

    def warnings(self, outputs: Outputs, fraction_trained: float) -> list[str]:
        """Sentences about classes without a mask, and about a model that finds no class."""
        sentences = [
            f"no mask to train with shows the class {name!r}" for name in self.missing_classes
        ]
        _, predicted, *_ = outputs["counts"].unbind(dim=1)
        if not predicted.any():
            sentences.append("the model takes every pixel for background")
        return sentences

    def evaluation(self, outputs: Outputs, images: Dataset | None = None) -> MaskFigures:
        """Metrics of all images together, also of each class, by what `eval_step` gave."""
        counts = PixelCounts(*outputs["counts"].unbind(dim=1))
        return mask_figures(counts, outputs["pixel_accuracy"], self.classes)

    def report_items(self, evaluation: EvaluationResult, images: Any) -> list[ReportItem]:
        """A plot of test images with true and predicted masks, and a table of metrics by class."""
        from torchcaps.viz import tiles

        examples = images.subset(evenly(torch.arange(len(images)), NUM_EXAMPLES))
        pictures = examples.float_images()
        with evaluating(self):  # one image at a time: they may be large
            maps = [
                self.predict_pixels(picture.to(device_of(self.model))).cpu()
                for picture in pictures.split(1)
            ]
        predicted = masks_from_probabilities(torch.cat(maps))
        masks = examples.targets["mask"].cpu()
        heads, rows = evaluation.table()
        return [
            ReportItem(
                "masks",
                "Masks",
                "Above: test images. Middle: with their true masks. Below: with the masks that the "
                "model finds.",
                tiles.masks(pictures.cpu(), masks, predicted, classes=images.classes),
                "Test images, and the same with true and predicted masks as colors over them.",
                heads,
                rows,
            )
        ]

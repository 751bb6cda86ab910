"""A class for each pixel: masks as data, as figures and as predictions.

Losses as in SegCaps' code (LaLonde, Bagci, arXiv 1804.04241), which knows one class; its soft Dice takes logits for
probabilities there, and not here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from PIL import Image
from torch import Generator, Tensor, nn

from torchcaps.data import Drawn as Batch
from torchcaps.data import ImageSet, MaskedSet, Preprocess, decode_image
from torchcaps.data.masks import overlaid, write_mask
from torchcaps.data.pixels import to_float
from torchcaps.distributed import all_reduce_sum
from torchcaps.errors import ArgumentError
from torchcaps.evaluation.accuracy.pixels import (
    MaskFigures,
    PixelCounts,
    mask_figures,
    pixel_counts,
)
from torchcaps.evaluation.forward import Progress, device_of, evaluating
from torchcaps.functional.squash import full_precision
from torchcaps.settings import TrainConfig
from torchcaps.tasks._base import BATCH, EvaluationResult, Outputs, ReportItem, Task, register_task
from torchcaps.types import declares

PIXELS = 1 << 18  # of a batch that is not trained with: 16 images of 128 x 128
SMOOTH = 1e-5  # of soft Dice
PRESENT, ABSENT = 0.9, 0.1  # lengths wanted by the margin loss
WEIGHT = 0.1 / 784  # of the reconstruction: 0.1 of its mean squared error
OVERLAP = 4  # tiles of a large image overlap by one in so many of their pixels
SHOWN = 10  # test images in a figure
Scores = Float[Tensor, "batch classes height width"]


class Said(NamedTuple):
    """What a model says of the classes of each pixel, the background left out."""

    share: Scores  # in [0, 1]: lengths, or sigmoids of logits
    logits: Scores | None  # None for a model of lengths


def cross_entropy(said: Said, target: Scores, weight: Tensor) -> Tensor:
    """Cross-entropy of one class a pixel, by odds `p / (1 - p)`, those of the background being 1.

    Of one class this is `-w T log p - (1 - T) log(1 - p)`. Judged each by itself, several classes that look alike would
    all stay below one half, and a network would find nothing."""
    logits = said.logits
    if logits is None:
        p = said.share.clamp(1e-7, 1 - 1e-7)
        logits = p.log() - (1 - p).log()
    log_share = F.log_softmax(F.pad(logits, (0, 0, 0, 0, 1, 0)), dim=1)
    ground = 1 - target.sum(dim=1)
    return -(ground * log_share[:, 0] + (weight * target * log_share[:, 1:]).sum(dim=1)).mean()


def margin(said: Said, target: Scores, weight: Tensor) -> Tensor:
    """`w T max(0, 0.9 - p)^2 / 2 + (1 - T) max(0, p - 0.1)^2 / 4`, summed over classes."""
    short, long = (
        (PRESENT - said.share).clamp(min=0).square(),
        (said.share - ABSENT).clamp(min=0).square(),
    )
    return (0.5 * weight * target * short + 0.25 * (1 - target) * long).sum(dim=1).mean()


def dice(said: Said, target: Scores, _weight: Tensor) -> Tensor:
    """One minus the soft Dice of each class over the batch, a mean over the classes that it shows.

    In training the batch is that of all processes; else each of them has batches of its own."""
    sums = torch.stack(
        [each.sum(dim=(0, 2, 3)) for each in (said.share * target, said.share, target)]
    )
    both, found, true = all_reduce_sum(sums) if sums.requires_grad else sums
    lost = 1 - (2 * both + SMOOTH) / (found + true + SMOOTH)
    shown = true > 0
    return (lost * shown).sum() / shown.sum().clamp(min=1)


# Name -> loss, and whether pixels of a class weigh by how rare they are.
LOSSES: dict[str, tuple[Callable[[Said, Tensor, Tensor], Tensor], bool]] = {
    "weighted_cross_entropy": (cross_entropy, True),
    "cross_entropy": (cross_entropy, False),
    "dice": (dice, False),
    "margin": (margin, False),
    "weighted_margin": (margin, True),
}


@register_task("segment")
class Segment(Task):
    """A class for each pixel, from masks. A class is found where its share is above one half, and the largest.

    With a decoder, capsules of the true class of each pixel draw the image, which is black where there is background.
    """

    score = "dice"
    losses = LOSSES
    capabilities = frozenset({"sweep"})
    is_dense = True

    def __init__(
        self, model: nn.Module, config: TrainConfig, images: ImageSet | None = None
    ) -> None:
        own = not declares(model)
        super().__init__(model, config, images)
        if own:
            self.spec = self.model.spec = replace(self.spec, is_dense=True, task=self.name)
        if images is not None and not self.supports(images):
            raise ArgumentError(
                "task", f"{self.name} takes images with masks, and {images.name} has none"
            )
        self.weight = (self.config.task.reconstruction or 0.0) if self.spec.decoder else 0.0
        self.rare, self.absent, self.eval_batch_size = torch.ones(1, 1, 1), [], BATCH
        if isinstance(images, MaskedSet):
            self.eval_batch_size = max(1, min(BATCH, PIXELS // images.masks[0].numel()))
            count = torch.bincount(images.masks.flatten(), minlength=images.num_classes)[
                1:
            ].double()
            self.absent = [
                name for name, n in zip(images.classes[1:], count.tolist(), strict=True) if not n
            ]
            rare = (images.masks.numel() - count) / count.clamp(min=1)
            self.rare = torch.where(count > 0, rare, 1.0).float().view(-1, 1, 1)

    def settings(self) -> dict[str, Any]:
        return {"reconstruction": WEIGHT if self.spec.decoder else 0.0}

    @classmethod
    def supports(cls, images: ImageSet) -> bool:
        return isinstance(images, MaskedSet)

    def sample_batch(self, images: Any, indices: Tensor, generator: Generator) -> Batch:
        """Images with their masks, which move with them: a pixel takes the class that most of it is made from."""
        if not self.training:
            index = indices.to(images.masks.device)
            return Batch(
                images.float_images(index), images.labels[index], masks=images.masks[index].long()
            )
        drawn = images.draw(indices, generator=generator)
        targets = _targets(drawn.masks, images.num_classes - 1)
        image, moved = self.transforms(drawn.images, generator, targets)
        assert moved is not None
        ground = 1 - moved.sum(dim=1, keepdim=True)
        masks = torch.cat([ground, moved], dim=1).argmax(dim=1)
        return Batch(image, drawn.labels, masks=masks)

    def said(self, images: Tensor) -> Said:
        """What the model says of images, in full precision."""
        if self.spec.logits:
            logits = full_precision(self.model.logits(images))
            return Said(self.model.probabilities(logits), logits)
        found = full_precision(self.model(images))
        return (
            Said(found.sigmoid(), found) if self.spec.activation == "logit" else Said(found, None)
        )

    def training_step(self, batch: Batch, progress: float) -> Outputs:
        masks: Any = batch.masks
        if not self.weight:
            loss = self.lost(self.said(batch.images), masks)
            return {"loss": loss, self.loss: loss}
        capsules = self.model.capsules(batch.images)
        loss = self.lost(Said(capsules.activation.movedim(-1, 1), None), masks)
        drawn = full_precision(self.model.reconstruct(capsules, masks))
        error = (drawn - batch.images * (masks > 0).unsqueeze(1)).square().mean()
        return {"loss": loss + self.weight * 784 * error, self.loss: loss, "reconstruction": error}

    def lost(self, said: Said, masks: Int64[Tensor, "batch height width"]) -> Tensor:
        """The loss of what is said, without axes."""
        function, weighted = LOSSES[self.loss]
        weight = self.rare.to(said.share.device) if weighted else said.share.new_ones(1, 1, 1)
        return function(said, _targets(masks, said.share.shape[1]), weight)

    def eval_step(self, batch: Batch) -> Outputs:
        """Counts of pixels `[batch, 7, classes - 1]`, the share of right pixels, and the loss of the batch."""
        masks: Any = batch.masks
        said = self.said(batch.images)
        predicted = _classes(said.share)
        counts = torch.stack(pixel_counts(predicted, masks, 1 + said.share.shape[1]), dim=1)
        right = (predicted == masks).flatten(1).double().mean(dim=1)
        return {"counts": counts, "right": right, "loss": self.lost(said, masks).expand(len(masks))}

    def compute_metrics(self, outputs: Outputs) -> dict[str, float]:
        found = self._found(outputs, tuple(map(str, range(1 + outputs["counts"].shape[2]))))
        loss = outputs["loss"].double().mean().item()
        return {"loss": loss, "dice": found.dice, "iou": found.iou, "boundary": found.boundary}

    def warnings(self, outputs: Outputs) -> list[str]:
        found = [f"no mask to train with shows the class {name!r}" for name in self.absent]
        if not PixelCounts(*outputs["counts"].unbind(dim=1)).predicted.any():
            found.append("the model takes every pixel for background")
        return found

    def check(self, images: ImageSet) -> Outputs:
        place = device_of(self.model)
        with evaluating(self):
            found = self.model(images.float_images([0]).to(place)).shape
        if found != (1, images.num_classes - 1, *images.img_size):
            height, width = images.img_size
            raise ArgumentError(
                "model",
                f"expected [batch, {images.num_classes - 1}, {height}, {width}], a map for each class but the "
                f"background, got {list(found)}",
            )
        return super().check(images)

    def evaluate(self, images: ImageSet, *, progress: Progress | None = None) -> EvaluationResult:
        return self._found(self.eval_outputs(images, progress=progress), images.classes)

    def report_items(self, found: EvaluationResult, images: Any) -> list[ReportItem]:
        from torchcaps.viz.tiles import masks

        some = torch.linspace(0, len(images) - 1, min(SHOWN, len(images))).long()
        with evaluating(self):
            shares = [
                self.said(images.float_images([k]).to(device_of(self.model))).share
                for k in some.tolist()
            ]
        predicted = _classes(torch.cat(shares)).cpu()
        shown = images.subset(some).to("cpu")
        heads, rows = found.table()
        return [
            ReportItem(
                "masks",
                "Masks",
                "Above: test images. Middle: with their true masks. Below: with the masks that the model finds.",
                masks(shown.float_images(), shown.masks, predicted, classes=images.classes),
                "Test images, and the same with true and with predicted masks as colors over them.",
                heads,
                tuple(rows),
            )
        ]

    def predict_files(
        self,
        files: Sequence[Path],
        names: Sequence[str],
        preprocess: Preprocess,
        output: Path | None,
    ) -> list[dict[str, Any]]:
        """Shares of pixels by class; writes `NAME_mask.png` and `NAME_overlay.png` of each image's own size.

        The label is the class with the most pixels, and the background where no class is found.
        An image is brought to the model's size as its training images were. A model that was trained on windows of
        its images looks at every image in windows, which overlap; memory does not grow with their number."""
        classes: tuple[str, ...] = self.model.classes
        rows = []
        for file, name in zip(files, names, strict=True):
            pixels = decode_image(file, None, preprocess.in_chans)
            mask = self.masked(pixels, preprocess).numpy()
            shares = np.bincount(mask.flatten(), minlength=len(classes)) / mask.size
            most = 1 + int(shares[1:].argmax()) if mask.any() else 0
            row = {"label": classes[most], "share": float(shares[most])}
            row |= {"shares": dict(zip(classes, shares.tolist(), strict=True))}
            if output is not None:
                paths = {what: output / f"{name}_{what}.png" for what in ("mask", "overlay")}
                write_mask(paths["mask"], mask, len(classes))
                Image.fromarray(overlaid(pixels.numpy(), mask, len(classes))).save(paths["overlay"])
                row |= {what: str(path) for what, path in paths.items()}
            rows.append(row)
        return rows

    def overlays(self, images: Tensor) -> tuple[Tensor, Tensor]:
        said = self.said(images).share
        found, count = _classes(said).cpu(), 1 + said.shape[1]
        shares = torch.stack(
            [(found == k).flatten(1).float().mean(dim=1) for k in range(count)], dim=1
        )
        pixels = images.mul(255).round().to(torch.uint8).cpu().numpy()
        drawn = [
            overlaid(image, mask, count) for image, mask in zip(pixels, found.numpy(), strict=True)
        ]
        return shares, torch.from_numpy(np.stack(drawn)).movedim(-1, 1).float() / 255

    @torch.inference_mode()
    def masked(self, pixels: Tensor, preprocess: Preprocess) -> Tensor:
        """The class of each pixel of an image `[channels, height, width]` in bytes, `[height, width]` in bytes."""
        size = pixels.shape[1:]
        if preprocess.crop is None:
            image = preprocess(pixels.movedim(0, -1).numpy())
            share = self.said(image.unsqueeze(0).to(device_of(self.model))).share.cpu()
            share = F.interpolate(share, size, mode="bilinear", align_corners=False)
        else:
            share = self._in_tiles(to_float(pixels), preprocess.crop).unsqueeze(0)
        return _classes(share)[0].to(torch.uint8)

    def _in_tiles(self, image: Tensor, side: int) -> Tensor:
        """Shares of an image of any size, `[classes, height, width]`, means over overlapping tiles, centers first."""
        height, width = image.shape[1:]
        image = F.pad(image, (0, max(0, side - width), 0, max(0, side - height)))
        ramp = torch.linspace(-1, 1, side).abs().mul(-1).add(1 + 1 / side)
        near = ramp.unsqueeze(1) * ramp
        total, share = torch.zeros(image.shape[1:]), torch.zeros(0)
        for top in _starts(image.shape[1], side):
            for left in _starts(image.shape[2], side):
                place = (slice(top, top + side), slice(left, left + side))
                tile = image[:, *place].unsqueeze(0).to(device_of(self.model))
                found = self.said(tile).share[0].cpu()
                if not len(share):
                    share = found.new_zeros(len(found), *image.shape[1:])
                share[:, *place] += found * near
                total[place] += near
        return (share / total)[:, :height, :width]

    @staticmethod
    def _found(outputs: Outputs, classes: tuple[str, ...]) -> MaskFigures:
        return mask_figures(
            PixelCounts(*outputs["counts"].unbind(dim=1)), outputs["right"], classes
        )


def _targets(masks: Int64[Tensor, "batch height width"], classes: int) -> Scores:
    """1 where a pixel is of a class, `[batch, classes, height, width]`, the background left out."""
    return (
        masks.unsqueeze(1) == torch.arange(1, 1 + classes, device=masks.device).view(-1, 1, 1)
    ).float()


def _classes(share: Scores) -> Int64[Tensor, "batch height width"]:
    """The class of each pixel: the one with the largest share if that is above one half, else the background, 0."""
    most, which = share.max(dim=1)
    return torch.where(most > 0.5, which + 1, 0)


def _starts(length: int, side: int) -> Iterator[int]:
    """First pixels of tiles along one axis, the last of which ends with the image."""
    yield from range(0, length - side, side - side // OVERLAP)
    yield length - side

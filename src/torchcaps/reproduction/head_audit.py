"""An audit: what a capsule head adds to plain heads, on the same features of a frozen backbone.

Four heads are trained anew for each of several folds, with the same images in the same order for
equally many steps: the capsules; the same with every coupling equal; a linear head; and one with a
hidden layer and as many weights as the capsules have. The fold after the one that is tested fits
the temperature of the probabilities and the threshold of the sets; of the other images the part
`holdout` chooses the epoch. Each image is answered once a seed.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, itemgetter
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

import torch
from torch import Generator, Tensor

from torchcaps import evaluation, training
from torchcaps.data import Dataset, match_classes, stratified_folds
from torchcaps.errors import ArgumentError, check_range
from torchcaps.evaluation.base import (
    EvaluationResult,
    Progress,
    TextTable,
    image_activations,
    proportion,
)
from torchcaps.models.backbone import head_on_backbone, head_on_features, plain_units
from torchcaps.models.notebook import parameter_count
from torchcaps.nn import CapsuleHead, use_generator
from torchcaps.reporting.evaluated import compare, read_margin
from torchcaps.reporting.prediction import Row, open_row_file
from torchcaps.settings import TrainConfig
from torchcaps.training.features import feature_set, stored_features, without_augmentation
from torchcaps.training.inputs import as_set
from torchcaps.training.run import is_run
from torchcaps.training.sampling import load_images
from torchcaps.types import Json, StrPath, spec_of
from torchcaps.words import rounded

CONTROLS = ("uniform", "linear", "mlp")
HEADS = ("capsules", *CONTROLS)


class OneStart(training.Callback):
    """Keeps a network that does not learn at first from a second start, with other steps."""

    def on_start(self, trainer: Any) -> None:
        trainer.probe_step = 0


@dataclass(frozen=True)
class AuditRow(EvaluationResult):
    """The answers of one head on one set of images; shares are in [0, 1].

    Attributes:
        images: "folds", each image answered by a network that did not see it; or "shifted".
        head: "capsules", "uniform", "linear" or "mlp".
        weights: number of those of the head.
        seconds: of all trainings of this head, with their tests.
        accuracy: mean over seeds.
        low: lower end of the 95 % interval of the accuracy, over seeds and images.
        high: upper end.
        calibration_error: expected calibration error of the probabilities.
        coverage: share of the conformal sets that hold the true class.
        set_size: mean number of classes in a set.
        class_coverage: coverage by the name of the true class, of the classes with images.
    """

    images: str
    head: str
    weights: int
    seconds: float
    accuracy: float
    low: float
    high: float
    calibration_error: float
    coverage: float
    set_size: float
    class_coverage: dict[str, float]


@dataclass(frozen=True)
class Audit(EvaluationResult):
    """What `audit` returns.

    Attributes:
        rows: of each head on the folds, then of each on the shifted images.
        settings: of the trainings, by group.
        uniform: the capsules compared with the same of uniform coupling, as by `tc.compare`, paired
            by seed. The p-values of the three comparisons are corrected for each other.
        linear: the capsules compared with a linear head.
        mlp: the capsules compared with a plain head of as many weights.
    """

    rows: list[AuditRow]
    settings: Json
    uniform: Any
    linear: Any
    mlp: Any

    derived = ("verdict",)

    @property
    def verdict(self) -> list[str]:
        """Five lines: routing, a linear head, equal weights, the sets, and shifted images."""
        row = self.rows[0]
        accuracies = [f"{row.head} {row.accuracy:.1%}" for row in self.rows[len(HEADS) :]]
        return [
            f"Routing (first) and uniform coupling (second): {self.uniform.verdict}",
            f"Capsules (first) and a linear head (second): {self.linear.verdict}",
            f"Capsules (first) and a plain head of as many weights (second): {self.mlp.verdict}",
            f"{row.coverage:.1%} of the sets of the capsules hold the true class, of one class "
            f"{min(row.class_coverage.values()):.1%}; they have {row.set_size:.2f} classes, those of "
            f"the plain head {self.rows[3].set_size:.2f}.",
            f"Shifted images: {', '.join(accuracies) or 'none were given'}.",
        ]

    def table(self) -> TextTable:
        """A row for each head on each set of images."""
        lines = [(row.images, row.head, *map(rounded, row.numbers.values())) for row in self.rows]
        return TextTable(("images", "head", *self.rows[0].numbers), lines)


def audit(
    head_or_model: Any,
    data: Any,
    labels: Any = None,
    *,
    shifted: Any = None,
    seeds: int = 3,
    level: float = 0.9,
    margin: str | float = "10%",
    output: StrPath | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Audit:
    """Compare a capsule head with its controls, on the same features, folds, seeds and steps.

    Heads are trained anew, whatever weights they have; the backbone is never trained. The features
    of images are computed once and kept in the cache folder, so that another audit costs its heads.

    Args:
        head_or_model: a `CapsuleHead`; a network of `with_backbone` with a frozen backbone; a run
            of one; or what the setting `backbone` takes.
        data: images of one class each, as `fit` takes them; a name or path, whose training split
            is read; for a `CapsuleHead` (features, labels), or a set of feature maps.
        labels: of images or features.
        shifted: images of the same classes from elsewhere, as `data`; they are only tested on.
        seeds: number of seeds, of folds, weights and order; with one, images alone are compared.
        level: of the conformal sets, in (0, 1).
        margin: smallest difference that matters; see `compare`.
        output: a .csv, .jsonl or .parquet for every prediction; it is there when all are done.
        progress: called with the numbers of heads that are done, of one seed each, and of all.
        settings: of the trainings and of what is read, by name: `folds`, 5 by default and at least
            3; `seed`, the first one; `epochs`; `lr`; `img_size`; and `model_options`, those of the
            head on a backbone by name.

    Returns:
        `.rows`, a `.verdict`, `.table()`, and a comparison with each control; see `Audit`.

    Raises:
        ArgumentError: no capsule head, images of several classes, a setting that would give heads
            unequal steps or other features, or a head that no plain one equals in weights.
        DataError, RunError, TrainingError: see `fit` and `evaluate`.
        KeyboardInterrupt: by Ctrl-C; no file is left.

    Example:
        >>> tc.audit(tc.nn.CapsuleHead(1280, 10), features, labels, epochs=5).uniform.outcome
        "undecided"
    """
    config = without_augmentation(TrainConfig.from_dict({"folds": 5} | settings))
    if config.training.patience or config.training.stop_at:
        raise ArgumentError("patience", "expected none: all heads train for equally many steps")
    check_range("folds", config.data.folds or 0, low=3)
    check_range("seeds", seeds, low=1)
    check_range("level", level, low=0, high=1)
    read_margin(margin)
    rows = []
    correct = {}
    with open_row_file(Path(output)) if output else nullcontext() as write:
        head, images = _read(head_or_model, data, labels, config)
        plain_units(head)  # refuses a head that has no equal before the first is trained
        if head.num_classes != images.num_classes:
            raise ArgumentError(
                "data", f"expected {head.num_classes} classes, got {images.num_classes}"
            )
        parts = {"folds": images}
        if shifted is not None:
            _, images = _read(head_or_model, shifted, None, config)
            parts["shifted"] = match_classes(images, parts["folds"].classes)
        for number, kind in enumerate(HEADS):
            start = perf_counter()
            predictions: list[Row] = []
            for seed in range(seeds):
                if progress is not None:
                    progress(number * seeds + seed, len(HEADS) * seeds)
                predictions += _answer(head, kind, parts, config, seed, level)
            seconds = perf_counter() - start
            for prediction in predictions:
                if write is not None:
                    write(prediction)
            weights = parameter_count(head_on_features(head, kind, images.img_size).head)
            for name, part in parts.items():
                answers = [row for row in predictions if row["images"] == name]
                answers.sort(key=itemgetter("seed", "image"))
                is_right = torch.tensor([row["label"] == row["prediction"] for row in answers])
                correct[name, kind] = is_right.view(seeds, -1)
                rows.append(_measure(answers, correct[name, kind], part.groups, weights, seconds))
    rows.sort(key=attrgetter("images"))
    groups = parts["folds"].groups
    against = partial(
        compare, correct["folds", "capsules"], groups=groups, margin=margin, paired=True
    )
    p_values = {kind: against(correct["folds", kind]).unadjusted_p for kind in CONTROLS}
    comparisons = []
    for kind in CONTROLS:
        adjust = [p_value for name, p_value in p_values.items() if name != kind]
        comparisons.append(against(correct["folds", kind], adjust=adjust))
    return Audit(rows, config.to_dict() | {"seeds": seeds, "level": level}, *comparisons)


def _read(source: Any, data: Any, labels: Any, config: TrainConfig) -> tuple[CapsuleHead, Dataset]:
    """The capsule head, and a set of features."""
    if labels is None and isinstance(data, tuple):
        data, labels = data
    if isinstance(source, CapsuleHead):
        return source, data if isinstance(data, Dataset) else feature_set(
            data, labels, source.in_features
        )
    if isinstance(data, StrPath):
        data = load_images(config.updated(data=str(data)), "train")
    images = as_set(data, labels)
    network: Any = source
    if isinstance(source, StrPath):
        network = training.load(source) if is_run(source) else None
        if not (network and spec_of(network).features):  # a backbone
            network = head_on_backbone(
                backbone=str(source),
                num_classes=images.num_classes,
                in_chans=images.in_chans,
                img_size=images.img_size,
                **config.model.options,
            )
    if not (spec_of(network).features and isinstance(network.head, CapsuleHead)):
        raise ArgumentError("head_or_model", "expected a capsule head on a frozen backbone")
    images = images.resized(network.img_size, network.in_chans)
    return network.head, stored_features(network, images, verbose=True)


def _answer(
    head: CapsuleHead,
    kind: str,
    parts: dict[str, Dataset],
    config: TrainConfig,
    seed: int,
    level: float,
) -> Iterator[Row]:
    """Predictions for every image of each part, by the networks of all folds."""
    count: Any = config.data.folds
    seed += config.training.seed
    config = config.replaced({"folds": None, "seed": seed}, "default")
    images = parts["folds"]
    folds = {
        name: stratified_folds(part.labels, count, seed, groups=part.groups)
        for name, part in parts.items()
    }
    for fold in range(count):
        with use_generator(Generator().manual_seed(seed)):
            network = head_on_features(head, kind, images.img_size)
        distance = (folds["folds"] - fold) % count
        trained = images.subset((distance > 1).nonzero().flatten())
        history = training.fit(
            network, trained, config=config, callbacks=[OneStart()], verbose=False
        ).history
        if len(history) < config.training.epochs:  # stopped by Ctrl-C
            raise KeyboardInterrupt
        calibration_images = images.subset((distance == 1).nonzero().flatten())
        activations = image_activations(network, calibration_images.float_images())
        calibration = evaluation.calibrate(activations, calibration_images.labels)
        val_probabilities = calibration.probabilities(activations)
        for name, part in parts.items():
            indices = (folds[name] == fold).nonzero().flatten()
            activations = image_activations(network, part.float_images(indices))
            probabilities = calibration.probabilities(activations)
            sets = evaluation.conformal_sets(
                probabilities, val_probabilities, calibration_images.labels, level
            )
            for index, row, is_member in zip(indices.tolist(), probabilities, sets, strict=True):
                members = [part.classes[k] for k in is_member.nonzero().flatten().tolist()]
                label = part.classes[part.labels[index]]
                yield {
                    "images": name,
                    "head": kind,
                    "seed": seed,
                    "fold": fold,
                    "image": index,
                    "label": label,
                    "prediction": part.classes[row.argmax()],
                    "probability": float(row.max()),
                    "covered": label in members,
                    "set_size": len(members),
                    "set": "|".join(members),
                }


def _measure(
    predictions: list[Row], is_right: Tensor, groups: Tensor | None, weights: int, seconds: float
) -> AuditRow:
    """The figures of the predictions of one head on one part; `is_right` is `[seeds, n]`."""
    covered = defaultdict(list)
    for row in predictions:
        covered[row["label"]].append(row["covered"])
    confidence = torch.tensor([row["probability"] for row in predictions])
    low, high = compare(is_right, torch.zeros_like(is_right), groups).interval
    return AuditRow(
        predictions[0]["images"],
        predictions[0]["head"],
        weights,
        seconds,
        accuracy=proportion(is_right),
        low=low,
        high=high,
        calibration_error=evaluation.reliability(confidence, is_right.flatten()).error,
        coverage=fmean(row["covered"] for row in predictions),
        class_coverage={label: fmean(flags) for label, flags in covered.items()},
        set_size=fmean(row["set_size"] for row in predictions),
    )

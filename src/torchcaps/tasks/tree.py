"""Training with a label tree: an image has a class on every level, from coarse to fine.

Losses and metrics as in the code of HT-CapsNet (Noor et al., Knowledge-Based Systems 329, 2025,
114444).

In: images labeled by their finest class, whose names are paths such as clothing/tops/shirt. A
`LabelTree` made of these names gives the parent of each class. The path of an image is its class on
every level, `[levels]` indices, coarse to fine. A model either has capsules for every level, or it
is a classifier of the finest classes, whose ancestors are then its coarser predictions.

Out: a weighted sum of a loss of each level; and metrics that compare predicted with true paths.
"""

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from torchcaps.data import Batch, Dataset, LabelTree, label_tree
from torchcaps.distributed import all_reduce_sum
from torchcaps.errors import ArgumentError, check_shape
from torchcaps.evaluation import Evaluation
from torchcaps.evaluation.base import EvaluationResult, TextTable
from torchcaps.tasks._base import Outputs, Predictions, ReportItem, register_task
from torchcaps.tasks.classify import LOSSES, Classify, Loss, Scores, batch_weights, margin
from torchcaps.transfer import device_of, widen
from torchcaps.types import ModelSpec
from torchcaps.words import in_words, join_names, percent

DYNAMIC = "dynamic_margin"  # the margin loss, levels weighted by their accuracy
# Metrics after every epoch; see `path_figures`.
EPOCH_METRICS = ("exact_match", "hierarchical_accuracy", "consistency")
Paths = Int64[Tensor, "n levels"]  # of each image a class of every level, coarse to fine


@dataclass(frozen=True, eq=False)
class TreeEvaluation(Evaluation):
    """Evaluation on a data set with a label tree; what is inherited is of the finest classes.

    Attributes:
        tree: of the classes.
        paths: predicted class on every level; a class need not be the parent of the next.
    """

    tree: LabelTree
    paths: Paths

    @cached_property
    def hierarchy(self) -> dict[str, float]:
        """Metrics by name, see `path_figures`."""
        return path_figures(self.paths, self.truth, self.tree)

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | self.hierarchy

    @property
    def summary(self) -> str:
        metrics = [f"{in_words(name)} {self.hierarchy[name]:.4f}" for name in EPOCH_METRICS]
        return f"{', '.join(metrics)}, {self.num_samples} images{self.extra_words}"

    def table(self) -> TextTable:
        heads, rows = super().table()
        num_right = (self.paths == self.truth).sum(dim=0).tolist()
        levels = []
        for level, (size, count) in enumerate(zip(self.tree.sizes, num_right, strict=True), 1):
            numbers = (percent(count / self.num_samples), str(count), str(self.num_samples))
            levels.append((f"level {level}: {size} classes", *numbers, "", "", ""))
        return TextTable(heads, [*levels, *rows])

    @property
    def truth(self) -> Paths:
        """`[n, levels]` true classes."""
        return torch.tensor(self.tree.ancestors)[self.labels]


@register_task("tree")
class Tree(Classify):
    """Classes on every level of a label tree.

    A model with capsules for every level learns a weighted sum of the losses of all levels. Any
    other classifier of the finest classes is trained as by the base class.
    """

    # Answers to the questions of the base class `Task`:
    # The metric by which the epoch is chosen. For a classifier of the finest classes it is their
    # accuracy, so that both kinds of models are chosen alike.
    score = "exact_match"
    losses: ClassVar[Mapping[str, Loss]] = ChainMap(
        {DYNAMIC: margin},
        LOSSES,  # type: ignore[arg-type]
    )
    model_tasks = ("classify", "tree")  # tasks of models for which "auto" may mean this one
    data = "classes that are paths of one depth, such as clothing/tops/shirt"

    def _setup(self, images: Dataset | None) -> None:
        super()._setup(images)
        if self.knows_levels and self.model.tree != self.tree:
            raise ArgumentError(
                "model", f"expected one built for a tree with levels of {self.tree.sizes} classes"
            )
        if self.loss == DYNAMIC and not self.knows_levels:
            raise ArgumentError(
                "loss",
                f"{DYNAMIC} weighs levels of a label tree, and this model tells only its finest",
            )

    @property
    def knows_levels(self) -> bool:
        """Whether the model has capsules for every level."""
        return self.spec.task == self.name

    @cached_property
    def tree(self) -> LabelTree:
        """That of the classes."""
        tree = label_tree(self.classes)
        if tree is None:
            raise ArgumentError("task", f"tree takes {self.data}, got {join_names(self.classes)}")
        return tree

    @cached_property
    def ancestors(self) -> Paths:
        """The path of each finest class, `[classes, levels]`, where the model is."""
        return torch.tensor(self.tree.ancestors, device=device_of(self.model))

    @classmethod
    def default_settings(cls, model: Any, spec: ModelSpec, loss: str) -> dict[str, Any]:
        """Those of the base class; models with capsules for every level learn no drawings."""
        settings = super().default_settings(model, spec, loss)
        if spec.task == cls.name:
            settings.pop("reconstruction", None)
        if loss != DYNAMIC and "label_smoothing" in LOSSES.fact(loss):
            settings["label_smoothing"] = 0.0
        return settings

    @classmethod
    def supports(cls, images: Dataset) -> bool:
        """Whether the names of the classes are paths of one depth."""
        return super().supports(images) and label_tree(images.classes) is not None

    def training_step(self, batch: Batch, fraction_trained: float) -> Outputs:
        """The loss of a batch, that of each level, and the accuracy of the finest classes."""
        if not self.knows_levels:
            return super().training_step(batch, fraction_trained)
        paths = self.ancestors[batch.targets["label"]]
        activations, predicted = self._predict_levels(batch.inputs)
        image_weights = batch_weights(self, batch)
        losses = [
            self._compute_loss(Scores(activation), classes, fraction_trained, image_weights)
            for activation, classes in zip(activations, paths.T, strict=True)
        ]
        is_right = predicted == paths  # [batch, levels]
        accuracy = None
        if self.loss == DYNAMIC:
            # Of this batch, over all processes. The authors take the accuracies of the batch
            # before, which a resumed run would have to remember.
            counts = F.pad(is_right.sum(dim=0).cpu(), (0, 1), value=len(is_right))
            counts = all_reduce_sum(counts).double()
            accuracy = counts[:-1] / counts[-1]
        weights = level_weights(self.tree.sizes, accuracy).to(is_right.device, torch.float32)
        outputs = {"loss": (weights * torch.stack(losses)).sum(), self.loss: losses[-1]}
        for level, loss in enumerate(losses[:-1], start=1):
            outputs[f"{self.loss}_{level}"] = loss
        outputs["accuracy"] = widen(is_right[:, -1]).mean()
        outputs["activation"] = activations[-1].detach()
        return outputs

    def _predict_levels(self, images: Tensor) -> tuple[list[Tensor], Paths]:
        """Activations `[batch, classes]` of every level, and its most active classes."""
        activations = [capsules.activation for capsules in self.model.levels(images)]
        return activations, torch.stack([level.argmax(dim=1) for level in activations], dim=1)

    def eval_step(self, batch: Batch) -> Outputs:
        """Activations of the finest classes, labels, and predicted "paths" `[batch, levels]`."""
        if not self.knows_levels:
            outputs = super().eval_step(batch)
            activation = outputs["activation"]
            check_shape("activation", activation, ("batch", "classes"), classes=len(self.ancestors))
            return outputs | {"paths": self.ancestors[activation.argmax(dim=1)]}
        activations, predicted = self._predict_levels(batch.inputs)
        return {
            "activation": activations[-1].float(),
            "labels": batch.targets["label"],
            "paths": predicted,
        }

    def compute_metrics(self, outputs: Outputs) -> dict[str, float]:
        """Metrics of the finest classes, and of paths."""
        figures = path_figures(outputs["paths"], self.ancestors.cpu()[outputs["labels"]], self.tree)
        return super().compute_metrics(outputs) | {name: figures[name] for name in EPOCH_METRICS}

    def evaluation(self, outputs: Outputs, images: Dataset) -> EvaluationResult:
        finest = super().evaluation(outputs, images)
        return TreeEvaluation(**vars(finest), tree=self.tree, paths=outputs["paths"])

    def report_items(self, evaluation: Any, images: Dataset) -> list[ReportItem]:
        """A table of the metrics, and the confusions of all levels but the finest come first."""
        from torchcaps import viz

        items = [
            ReportItem(
                "tree",
                "The label tree",
                "Level 1 is the coarsest. Hierarchical accuracy is the harmonic mean of the "
                "accuracies of the levels. A match is exact when all levels are right, and "
                "consistent when each class is the parent of the next, right or wrong. Precision, "
                "recall and F1 compare the predicted classes, with all of their ancestors, with "
                "the true path.",
                heads=("Figure", "Share"),
                rows=[
                    (in_words(name), percent(share)) for name, share in evaluation.hierarchy.items()
                ],
            )
        ]
        levels = zip(
            evaluation.tree.levels[:-1], evaluation.truth.T, evaluation.paths.T, strict=False
        )
        for level, (names, truth, predicted) in enumerate(levels, start=1):
            size = len(names)
            counts = (truth * size + predicted).bincount(minlength=size**2).view(size, size)
            items.append(
                ReportItem(
                    f"level-{level}",
                    f"Groups of level {level}",
                    "Rows are true groups, columns what they were taken for.",
                    viz.confusion_matrix(counts, names),
                    f"Confusion matrix of {size} groups.",
                )
            )
        return items + super().report_items(evaluation, images)

    def predict(self, images: Tensor) -> Predictions:
        labels = torch.arange(len(images), device=images.device)  # of which nothing depends
        paths = self.eval_step(Batch(images, {"label": labels}, labels))["paths"].cpu()
        rows = super().predict(images)
        for row, path, consistent in zip(rows, paths, is_consistent(paths, self.tree), strict=True):
            row["consistent"] = bool(consistent)
            row["levels"] = [names[k] for names, k in zip(self.tree.levels, path, strict=True)]
        return rows


def is_consistent(paths: Paths, tree: LabelTree) -> Bool[Tensor, " n"]:
    """Whether, on every level, the class of a path is the parent of the next one.

    `tree.parents[level][k]` is the parent of class k of the next level.
    """
    agrees = paths.new_ones(len(paths), dtype=torch.bool)
    for level, parents in enumerate(tree.parents):
        parent_of = paths.new_tensor(parents)
        agrees &= parent_of[paths[:, level + 1]] == paths[:, level]
    return agrees


def level_weights(
    sizes: Sequence[int], accuracy: Float[Tensor, " levels"] | None = None
) -> Float[Tensor, " levels"]:
    """Weights of the losses of the levels l, of sum 1.

    Args:
        sizes: number of classes n_l of each level.
        accuracy: of each level, in [0, 1]; None for weights that do not depend on it.

    Returns:
        w_l = `1 - n_l / sum n`, divided by their sum: 0.444, 0.333 and 0.222 for 2, 6 and 10
        classes. With accuracies `1 - accuracy_l * w_l`, divided by their sum.
    """
    n = torch.tensor(sizes, dtype=torch.float64)
    weights = F.normalize(1 - n / n.sum(), p=1, dim=0)
    if accuracy is None:
        return weights
    return F.normalize(1 - accuracy * weights, p=1, dim=0)


def path_figures(paths: Paths, truth: Paths, tree: LabelTree) -> dict[str, float]:
    """Metrics that compare predicted with true paths, each in [0, 1].

    Args:
        paths: predicted ones.
        truth: true ones.
        tree: of the classes.

    Returns:
        "level_1_accuracy", ...: of each level, coarse to fine. "hierarchical_accuracy": their
        harmonic mean. "exact_match": share of images that are right on every level. "consistency":
        share of predicted paths whose classes are each the parent of the next, right or wrong.
        "hierarchical_precision", "_recall", "_f1": means over images, for two sets of classes: the
        predicted classes with all of their ancestors, and the true path.
    """
    depth = len(tree.sizes)
    is_right = paths == truth
    accuracies = widen(is_right).mean(dim=0).tolist()
    harmonic_mean = depth / sum(1 / share for share in accuracies) if min(accuracies) else 0.0

    # Level by level, fine to coarse: `classes` are the predicted class of the level, and the
    # ancestors on this level of what is predicted on finer levels. They may be equal.
    num_common = paths.new_zeros(len(paths))
    num_predicted = paths.new_zeros(len(paths))
    classes = paths[:, depth:]  # none yet: [n, 0]
    for level in reversed(range(depth)):
        if level < depth - 1:
            classes = paths.new_tensor(tree.parents[level])[classes]
        classes = torch.cat([paths[:, level : level + 1], classes], dim=1)
        num_common += (classes == truth[:, level : level + 1]).any(dim=1)
        # Number of different classes.
        num_predicted += 1 + (classes.sort(dim=1).values.diff(dim=1) != 0).sum(dim=1)

    num_common = widen(num_common)
    shares = {
        "exact_match": is_right.all(dim=1),
        "consistency": is_consistent(paths, tree),
        "hierarchical_precision": num_common / num_predicted,
        "hierarchical_recall": num_common / depth,
        "hierarchical_f1": 2 * num_common / (num_predicted + depth),
    }
    figures = {f"level_{level}_accuracy": share for level, share in enumerate(accuracies, start=1)}
    figures["hierarchical_accuracy"] = harmonic_mean
    return figures | {name: widen(share).mean().item() for name, share in shares.items()}

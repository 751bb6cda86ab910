"""Classes of every level of a label tree; and how well a classifier of its finest classes knows the others.

Losses and metrics as in the code of HT-CapsNet (Noor et al., Knowledge-Based Systems 329, 2025, 114444).
"""

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from torchcaps.data import ImageBatch, ImageSet, LabelTree, label_tree
from torchcaps.distributed import all_reduce_sum
from torchcaps.errors import ArgumentError, check_shape
from torchcaps.evaluation import Evaluation
from torchcaps.evaluation.base import TextTable
from torchcaps.evaluation.forward import device_of
from torchcaps.settings import TrainConfig
from torchcaps.tasks._base import EvaluationResult, Outputs, ReportItem, register_task
from torchcaps.tasks.classify import LOSSES, Classify, Loss, Scores, margin
from torchcaps.types import ModelSpec, model_metadata
from torchcaps.words import percent

DYNAMIC = "dynamic_margin"
SHOWN = ("exact_match", "hierarchical_accuracy", "consistency")  # after every epoch
Paths = Int64[Tensor, "n levels"]  # of each image a class of every level, coarse to fine


@dataclass(frozen=True, eq=False)
class TreeEvaluation(Evaluation):
    """What a model made of a data set with a label tree; what `Evaluation` has is of the finest classes."""

    tree: LabelTree
    paths: Paths  # classes that the model says, level by level; they need not belong to one another
    hierarchy: dict[str, float]  # see `path_figures`

    def to_dict(self) -> dict[str, Any]:
        return super().to_dict() | self.hierarchy

    @property
    def summary(self) -> str:
        shown = ", ".join(f"{name.replace('_', ' ')} {self.hierarchy[name]:.4f}" for name in SHOWN)
        return f"{shown}, {self.num_samples} images{self.extra_words}"

    def table(self) -> TextTable:
        heads, rows = super().table()
        right = (self.paths == self.truth).sum(dim=0).tolist()
        pairs = enumerate(zip(self.tree.sizes, right, strict=True), start=1)
        count = self.num_samples
        levels = [
            (f"level {k}: {n} classes", percent(r / count), str(r), str(count), "")
            for k, (n, r) in pairs
        ]
        return TextTable(heads, [*levels, *rows])

    @property
    def truth(self) -> Paths:
        """`[n, levels]` true classes."""
        return torch.tensor(self.tree.ancestors)[self.labels]


@register_task("tree")
class Tree(Classify):
    """Every level of a label tree; the loss is that of each level, weighted.

    A classifier of the finest classes is trained as ever; its coarser classes are the ancestors of its finest."""

    score = "exact_match"  # of a classifier of the finest classes it is the accuracy, so that epochs are chosen alike
    losses: ClassVar[Mapping[str, Loss]] = ChainMap({DYNAMIC: margin}, LOSSES)  # type: ignore[arg-type]
    ancestors: Tensor  # `[classes, levels]`: of each class its place in every level

    def __init__(
        self, model: nn.Module, config: TrainConfig, images: ImageSet | None = None
    ) -> None:
        classes = model_metadata(model).classes if images is None else images.classes
        tree = label_tree(classes)
        if tree is None:
            got = ", ".join(classes[:3]) + (", ..." if len(classes) > 3 else "")
            raise ArgumentError(
                "task",
                f"tree needs paths of one depth as classes, such as clothing/tops/shirt, got {got}",
            )
        super().__init__(model, config, images)
        self.tree, self.knows_levels = tree, self.spec.task == self.name
        if self.knows_levels and self.model.tree != tree:
            sizes = ", ".join(map(str, tree.sizes))
            raise ArgumentError(
                "model", f"expected one built for these classes, whose tree has levels of {sizes}"
            )
        if self.loss == DYNAMIC and not self.knows_levels:
            raise ArgumentError(
                "loss",
                f"{DYNAMIC} weighs levels of a label tree, and this model tells only its finest",
            )
        self.register_buffer(
            "ancestors", torch.tensor(tree.ancestors, device=device_of(model)), persistent=False
        )

    @classmethod
    def supports(cls, images: ImageSet) -> bool:
        return super().supports(images) and label_tree(images.classes) is not None

    @classmethod
    def matches(cls, spec: ModelSpec, images: ImageSet) -> bool:
        return spec.task in ("classify", cls.name) and cls.supports(images)

    def training_step(self, batch: ImageBatch, progress: float) -> Outputs:
        if not self.knows_levels:
            return super().training_step(batch, progress)
        activations = [capsules.activation for capsules in self.model.levels(batch.images)]
        paths = self.ancestors[batch.labels]
        compute_loss = self.losses[self.loss]
        losses = [
            compute_loss(Scores(activation), paths[:, level], progress, self.config.task)
            for level, activation in enumerate(activations)
        ]
        is_right = _predicted_paths(activations) == paths
        parts = {f"{self.loss}_{level}": loss for level, loss in enumerate(losses[:-1], start=1)}
        return {
            "loss": (self._weights(is_right) * torch.stack(losses)).sum(),
            self.loss: losses[-1],
            **parts,
            "accuracy": is_right[:, -1].double().mean(),
            "activation": activations[-1].detach(),
        }

    def _weights(self, is_right: Bool[Tensor, "batch levels"]) -> Float[Tensor, " levels"]:
        """Of the levels in this step; dynamic ones by the accuracies of the whole batch, of all processes.

        The authors take those of the batch before, which a run that goes on would have to remember."""
        accuracy = None
        if self.loss == DYNAMIC:
            counts = torch.tensor([*is_right.sum(dim=0).tolist(), len(is_right)])
            *hits, total = all_reduce_sum(counts).tolist()
            accuracy = [hit / total for hit in hits]
        return torch.tensor(level_weights(self.tree.sizes, accuracy), device=is_right.device)

    def eval_step(self, batch: ImageBatch) -> Outputs:
        if not self.knows_levels:
            outputs = super().eval_step(batch)
            activation = outputs["activation"]
            check_shape("activation", activation, ("batch", "classes"), classes=len(self.ancestors))
            return outputs | {"paths": self.ancestors[activation.argmax(dim=1)]}
        activations = [capsules.activation for capsules in self.model.levels(batch.images)]
        return {
            "activation": activations[-1].float(),
            "labels": batch.labels,
            "paths": _predicted_paths(activations),
        }

    def compute_metrics(self, outputs: Outputs) -> dict[str, float]:
        figures = self._path_figures(outputs)
        return super().compute_metrics(outputs) | {name: figures[name] for name in SHOWN}

    def _path_figures(self, outputs: Outputs) -> dict[str, float]:
        return path_figures(outputs["paths"], self.ancestors.cpu()[outputs["labels"]], self.tree)

    def evaluation(self, outputs: Outputs, images: ImageSet) -> EvaluationResult:
        finest: Any = super().evaluation(outputs, images)
        return TreeEvaluation(
            **vars(finest),
            tree=self.tree,
            paths=outputs["paths"],
            hierarchy=self._path_figures(outputs),
        )

    def report_items(self, evaluation: Any, images: ImageSet) -> list[ReportItem]:
        return [*_levels(evaluation), *super().report_items(evaluation, images)]

    @torch.inference_mode()
    def predict(self, images: Tensor) -> list[dict[str, Any]]:
        labels = torch.zeros(len(images), dtype=torch.int64, device=images.device)
        paths = self.eval_step(ImageBatch(images, labels))["paths"].tolist()
        return [
            row
            | {
                "consistent": self._is_consistent(path),
                "levels": [names[k] for names, k in zip(self.tree.levels, path, strict=True)],
            }
            for row, path in zip(super().predict(images), paths, strict=True)
        ]

    def _is_consistent(self, path: Sequence[int]) -> bool:
        """Whether each class is the parent of the next."""
        steps = zip(self.tree.parents, path[:-1], path[1:], strict=True)
        return all(parents[child] == parent for parents, parent, child in steps)


def _predicted_paths(activations: Sequence[Tensor]) -> Paths:
    """The most active class of every level."""
    return torch.stack([activation.argmax(dim=1) for activation in activations], dim=1)


def level_weights(sizes: Sequence[int], accuracy: Sequence[float] | None = None) -> list[float]:
    """What the loss of each level counts; the sum is 1.

    `1 - n_l / sum n`, normalized: 0.444, 0.333 and 0.222 for 2, 6 and 10 classes. With the accuracies of the levels,
    in [0, 1]: `1 - accuracy_l * initial_l`, normalized."""
    weights = [1 - count / sum(sizes) for count in sizes]
    initial = [weight / sum(weights) for weight in weights]
    if accuracy is None:
        return initial
    weights = [1 - share * weight for share, weight in zip(accuracy, initial, strict=True)]
    return [weight / sum(weights) for weight in weights]


def path_figures(paths: Paths, truth: Paths, tree: LabelTree) -> dict[str, float]:
    """How well paths fit true ones, each in [0, 1].

    `level_1_accuracy`, ..., of each level, coarse to fine; `hierarchical_accuracy`, their harmonic mean; `exact_match`,
    the share of images that are right on every level; `consistency`, of those whose classes are each the parent of the
    next, which needs no truth. `hierarchical_precision`, `_recall` and `_f1` compare sets, an image at a time: the
    classes that are said, with all of their ancestors, against the true path."""
    depth = len(tree.sizes)
    is_right = paths == truth
    accuracies = is_right.double().mean(dim=0).tolist()
    # For each level, fine to coarse: the predicted class, and ancestors of those predicted below.
    lineage = [paths[:, -1:]]
    is_consistent = torch.ones(len(paths), dtype=torch.bool)
    for level in range(depth - 2, -1, -1):
        parents = torch.tensor(tree.parents[level])[lineage[-1]]
        is_consistent &= parents[:, 0] == paths[:, level]
        lineage.append(torch.cat([paths[:, level : level + 1], parents], dim=1))
    lineage.reverse()
    num_common = torch.zeros(len(paths), dtype=torch.float64)
    num_predicted = torch.zeros(len(paths), dtype=torch.float64)
    for level, classes in enumerate(lineage):
        num_common += (classes == truth[:, level : level + 1]).any(dim=1)
        num_predicted += 1 + (classes.sort(dim=1).values.diff(dim=1) != 0).sum(dim=1)
    precision = num_common / num_predicted
    recall = num_common / depth
    f1 = 2 * precision * recall / (precision + recall).clamp(min=torch.finfo(torch.float64).tiny)
    harmonic_mean = depth / sum(1 / value for value in accuracies) if min(accuracies) else 0.0
    return {
        **{f"level_{level}_accuracy": value for level, value in enumerate(accuracies, start=1)},
        "hierarchical_accuracy": harmonic_mean,
        "exact_match": is_right.all(dim=1).double().mean().item(),
        "consistency": is_consistent.double().mean().item(),
        "hierarchical_precision": precision.mean().item(),
        "hierarchical_recall": recall.mean().item(),
        "hierarchical_f1": f1.mean().item(),
    }


def _levels(evaluation: TreeEvaluation) -> list[ReportItem]:
    """A table of the figures, and a picture of the confusions between the groups of every level but the last."""
    from torchcaps import viz

    about = (
        "Level 1 is the coarsest. Hierarchical accuracy is the harmonic mean of the accuracies of the levels. A match "
        "is exact when all levels are right, and consistent when each class is the parent of the next, right or wrong. "
        "Precision, recall and F1 compare the predicted classes, with all of their ancestors, with the true path."
    )
    rows = [
        (name.replace("_", " "), percent(value)) for name, value in evaluation.hierarchy.items()
    ]
    items = [
        ReportItem("tree", "The label tree", about, heads=("Figure", "Share"), rows=tuple(rows))
    ]
    for level, names in enumerate(evaluation.tree.levels[:-1]):
        pairs = evaluation.truth[:, level] * len(names) + evaluation.paths[:, level]
        counts = torch.bincount(pairs, minlength=len(names) ** 2).view(len(names), -1)
        items.append(
            ReportItem(
                f"level-{level + 1}",
                f"Groups of level {level + 1}",
                "Rows are true groups, columns what they were taken for.",
                viz.confusion_matrix(counts, viz.names.drawable(names)),
                f"Confusion matrix of {len(names)} groups.",
            )
        )
    return items

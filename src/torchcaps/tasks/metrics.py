"""Metrics that a run may ask for, by the setting `metrics`, beside those of its task.

A task gives outputs for each image, tensors by name (`Task.eval_step`), such as "activation" and
"labels". A metric is a function of some of them for all images of a data set.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxtyping import Float, Shaped
from torch import Tensor

from torchcaps.data.classes import class_counts, multi_hot
from torchcaps.evaluation import label_hits
from torchcaps.registry import Registry
from torchcaps.transfer import widen

METRICS: Registry[Callable[..., Any]] = Registry("metric", needs=("activation", "labels"))
register_metric = METRICS.register
"""Decorator: makes a function known as a metric, which the setting `metrics` names.

It is given the outputs of `Task.eval_step` that it needs, for all images and on the CPU, and
returns a number. `needs` names these outputs in the order of its arguments, by default activations
and labels. A task that does not give them leaves the metric out, and `fit` says so. ValueError for a
name that is taken, unless `replace`; by default it is the name of the function.
"""
list_metrics = METRICS.names
"""Names of metrics."""


def extra_metrics(names: Sequence[str], outputs: Mapping[str, Tensor]) -> dict[str, float]:
    """Compute metrics of all images; those that need other outputs are left out.

    Args:
        names: of metrics. Raises UnknownNameError for one that is not registered.
        outputs: of a task for all images, by name.

    Returns:
        Numbers by the names of the metrics.
    """
    figures = {}
    for name in names:
        needs = METRICS.fact(name, "needs")
        if outputs.keys() >= set(needs):
            figures[name] = float(METRICS[name](*map(outputs.get, needs)))
    return figures


@register_metric()
def brier_score(
    activation: Float[Tensor, "n classes"], labels: Shaped[Tensor, " n *classes"]
) -> Float[Tensor, ""]:
    """Squared distance of activations from 1 for classes shown and 0 for others.

    It is summed over classes, and a mean over images.
    """
    return widen(activation - multi_hot(labels, activation.shape[1])).square().sum(dim=1).mean()


@register_metric()
def balanced_accuracy(
    activation: Float[Tensor, "n classes"], labels: Shaped[Tensor, " n *classes"]
) -> Float[Tensor, ""]:
    """Mean accuracy of the classes that are shown, however many images each of them has.

    Args:
        activation: of every class.
        labels: one class an image; or 0 and 1 for each class, of which k are right if they are
            among the k most active ones.
    """
    num_shown = class_counts(labels, activation.shape[1])
    recalls = widen(label_hits(activation, labels).sum(dim=0)) / num_shown
    return recalls[num_shown > 0].mean()


@register_metric()
def top5_accuracy(
    activation: Float[Tensor, "n classes"], labels: Shaped[Tensor, " n *classes"]
) -> Float[Tensor, ""]:
    """Share of images whose classes are all among the five most active ones.

    Args:
        activation: of every class.
        labels: one class an image; or 0 and 1 for each class.
    """
    num_classes = activation.shape[1]
    predicted = activation.topk(min(5, num_classes)).indices
    is_missed = multi_hot(labels, num_classes).bool().scatter(1, predicted, False)
    return widen(~is_missed.any(dim=1)).mean()

"""The control of a trained model: the plain network that it is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torchcaps as tc

if TYPE_CHECKING:
    from torchcaps.settings import TrainConfig

FOLDER = "control"  # within the run's


def control_config(config: TrainConfig) -> TrainConfig:
    """The configuration of the control: the same training of the same images, by its own loss.

    Args:
        config: of the run, complete.
    """
    info = tc.models.model_info(config.model.name)
    options = {
        name: option
        for name, option in config.model.options.items()
        if name in info.control_options
    }
    return config.updated(model=info.control, model_options=options, loss="auto")


def has_control(run: tc.training.Run) -> bool:
    """Whether a run is always compared: its model has a control, and stood on stored features."""
    if not tc.models.model_info(run.config.model.name).control:
        return False
    model: Any = tc.load(run.path)
    return bool(model.spec.features)


def compare_with_control(
    evaluations: Mapping[tc.training.Run, Any],
) -> tuple[list[tuple[str, ...]], str, dict[str, Any]]:
    """Both models side by side.

    Args:
        evaluations: that of the run in question, then that of its control.

    Returns:
        The rows of a table, the heading first; the verdict; and a document of both.
    """
    from torchcaps.models.notebook import parameter_count
    from torchcaps.words import duration, percent

    rows: list[tuple[str, ...]] = [("model", "accuracy", "weights of the head", "training")]
    for run, evaluation in evaluations.items():
        model: Any = tc.load(run.path)
        seconds = duration(run.seconds) if run.seconds else "-"
        count = f"{parameter_count(model.head):,}"
        rows.append((run.config.model.name, percent(evaluation.accuracy), count, seconds))
    comparison = tc.compare(*evaluations.values())
    document = evaluation.to_dict() | {"run": str(run.path)}
    return rows, comparison.verdict, document | {"comparison": comparison.to_dict()}

"""Tasks that a model is trained for, one file each, and the registries of tasks and losses.

The file of a task is imported when the task, or a name of its file, is first asked for.
"""

from importlib import import_module
from typing import Any

from torchcaps.tasks._base import (
    EvaluationResult as EvaluationResult,
    MetricResult as MetricResult,
    ReportItem as ReportItem,
    Task as Task,
    check_task as check_task,
    create_task as create_task,
    eval_outputs as eval_outputs,
    evaluate_task as evaluate_task,
    evenly as evenly,
    list_tasks as list_tasks,
    register_loss as register_loss,
    register_task as register_task,
    task_class as task_class,
)
from torchcaps.tasks._config import (
    complete_config as complete_config,
    without_default_changes as without_default_changes,
)
from torchcaps.tasks.metrics import list_metrics as list_metrics, register_metric as register_metric

# Further names, and the files that they are loaded from.
_HOMES = {
    "Align": "align",
    "Classify": "classify",
    "Multilabel": "multilabel",
    "Scores": "classify",
    "Segment": "segment",
    "Transform": "transform",
    "TransformingEvaluation": "pose_changes",
    "Tree": "tree",
    "TreeEvaluation": "tree",
    "Unsupervised": "unsupervised",
    "evaluate_transforming": "pose_changes",
    "transformed_pairs": "transform",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

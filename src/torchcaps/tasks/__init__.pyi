from torchcaps.evaluation.base import (
    EvaluationResult as EvaluationResult,
    MetricResult as MetricResult,
)
from torchcaps.tasks._base import (
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
from torchcaps.tasks.align import Align as Align
from torchcaps.tasks.classify import Classify as Classify, Scores as Scores
from torchcaps.tasks.metrics import list_metrics as list_metrics, register_metric as register_metric
from torchcaps.tasks.multilabel import Multilabel as Multilabel
from torchcaps.tasks.pose_changes import (
    TransformingEvaluation as TransformingEvaluation,
    evaluate_transforming as evaluate_transforming,
)
from torchcaps.tasks.regress import Regress as Regress
from torchcaps.tasks.segment import Segment as Segment
from torchcaps.tasks.transform import Transform as Transform, transformed_pairs as transformed_pairs
from torchcaps.tasks.tree import Tree as Tree, TreeEvaluation as TreeEvaluation
from torchcaps.tasks.unsupervised import Unsupervised as Unsupervised

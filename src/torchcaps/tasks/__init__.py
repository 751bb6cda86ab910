"""What a system is trained for: one file a task, and the registries that find tasks and losses."""

from torchcaps.registry import import_submodules
from torchcaps.tasks._base import EvaluationResult as EvaluationResult
from torchcaps.tasks._base import MetricResult as MetricResult
from torchcaps.tasks._base import ReportItem as ReportItem
from torchcaps.tasks._base import Task as Task
from torchcaps.tasks._base import check_task as check_task
from torchcaps.tasks._base import create_task as create_task
from torchcaps.tasks._base import list_tasks as list_tasks
from torchcaps.tasks._base import mapped as mapped
from torchcaps.tasks._base import register_loss as register_loss
from torchcaps.tasks._base import register_task as register_task
from torchcaps.tasks._base import resolve_config as resolve_config
from torchcaps.tasks._base import task_class as task_class
from torchcaps.tasks.align import Align as Align
from torchcaps.tasks.classify import Classify as Classify
from torchcaps.tasks.classify import Scores as Scores
from torchcaps.tasks.metrics import list_metrics as list_metrics
from torchcaps.tasks.metrics import register_metric as register_metric
from torchcaps.tasks.multilabel import Multilabel as Multilabel
from torchcaps.tasks.pose_changes import TransformingEvaluation as TransformingEvaluation
from torchcaps.tasks.pose_changes import evaluate_transforming as evaluate_transforming
from torchcaps.tasks.segment import Segment as Segment
from torchcaps.tasks.transform import Transform as Transform
from torchcaps.tasks.transform import transformed_pairs as transformed_pairs
from torchcaps.tasks.tree import Tree as Tree
from torchcaps.tasks.tree import TreeEvaluation as TreeEvaluation
from torchcaps.tasks.unsupervised import Unsupervised as Unsupervised

import_submodules(__name__)

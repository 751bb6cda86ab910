"""Evaluation of trained models, prediction, and reports: figures, plots, an HTML page.

Names are loaded when first used, so that a prediction does not wait for reports.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchcaps.reporting.answers import compare as compare
    from torchcaps.reporting.api import (
        can_plot as can_plot,
        diagnose as diagnose,
        evaluate as evaluate,
        evaluation_folder as evaluation_folder,
        save_figure as save_figure,
    )
    from torchcaps.reporting.evaluated import EvaluatedRun as EvaluatedRun
    from torchcaps.reporting.html import report as report
    from torchcaps.reporting.pictures import (
        perturb_run as perturb_run,
        reconstruct_run as reconstruct_run,
    )
    from torchcaps.reporting.prediction import Predictor as Predictor, predict as predict
    from torchcaps.reporting.sections import register_section as register_section
    from torchcaps.reporting.subject import open_task as open_task

# Public names, and the modules that they are loaded from.
_HOMES = {
    "EvaluatedRun": "evaluated",
    "Predictor": "prediction",
    "can_plot": "api",
    "compare": "answers",
    "diagnose": "api",
    "evaluate": "api",
    "evaluation_folder": "api",
    "open_task": "subject",
    "perturb_run": "pictures",
    "predict": "prediction",
    "reconstruct_run": "pictures",
    "register_section": "sections",
    "report": "html",
    "save_figure": "api",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'torchcaps.reporting' has no attribute {name!r}")
    return getattr(import_module(f"torchcaps.reporting.{_HOMES[name]}"), name)

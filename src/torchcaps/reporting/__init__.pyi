from torchcaps.reporting.api import (
    animate_run as animate_run,
    can_plot as can_plot,
    diagnose as diagnose,
    evaluate as evaluate,
    evaluation_folder as evaluation_folder,
    open_task as open_task,
    perturb_run as perturb_run,
    reconstruct_run as reconstruct_run,
    save_figure as save_figure,
    save_film as save_film,
)
from torchcaps.reporting.evaluated import EvaluatedRun as EvaluatedRun, compare as compare
from torchcaps.reporting.html import register_section as register_section, report as report
from torchcaps.reporting.prediction import Predictor as Predictor, predict as predict

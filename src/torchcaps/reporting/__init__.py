"""A run in, files for people out: figures as JSON, plots as PNG, a report as one HTML page."""

from torchcaps.reporting.comparison import compare_folders as compare_folders
from torchcaps.reporting.finished import FinishedRun as FinishedRun
from torchcaps.reporting.html import write_comparison as write_comparison
from torchcaps.reporting.html import write_report as write_report
from torchcaps.reporting.notebook import Run as Run
from torchcaps.reporting.pictures import perturb_run as perturb_run
from torchcaps.reporting.pictures import reconstruct_run as reconstruct_run
from torchcaps.reporting.run import can_plot as can_plot
from torchcaps.reporting.run import evaluation_folder as evaluation_folder
from torchcaps.reporting.run import finish_run as finish_run
from torchcaps.reporting.run import open_run as open_run
from torchcaps.reporting.run import save_figure as save_figure
from torchcaps.reporting.run import write_evaluation as write_evaluation
from torchcaps.reporting.sections import register_section as register_section

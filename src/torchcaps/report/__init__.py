"""A run in, files for people out: figures as JSON, plots as PNG, a report as one HTML page."""

from torchcaps.report.comparison import compare_folders as compare_folders
from torchcaps.report.finished import FinishedRun as FinishedRun
from torchcaps.report.html import write_comparison as write_comparison
from torchcaps.report.html import write_report as write_report
from torchcaps.report.notebook import Run as Run
from torchcaps.report.pictures import perturb_run as perturb_run
from torchcaps.report.pictures import reconstruct_run as reconstruct_run
from torchcaps.report.run import can_plot as can_plot
from torchcaps.report.run import evaluation_folder as evaluation_folder
from torchcaps.report.run import finish_run as finish_run
from torchcaps.report.run import open_run as open_run
from torchcaps.report.run import save_figure as save_figure
from torchcaps.report.run import write_evaluation as write_evaluation
from torchcaps.report.sections import register_section as register_section

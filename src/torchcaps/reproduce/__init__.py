"""Published experiments, run and set beside their published figures."""

from torchcaps.reproduce.field import field_tables as field_tables
from torchcaps.reproduce.field import write_field as write_field
from torchcaps.reproduce.measures import MEASURES as MEASURES
from torchcaps.reproduce.measures import Trained as Trained
from torchcaps.reproduce.measures import register_measure as register_measure
from torchcaps.reproduce.run import Result as Result
from torchcaps.reproduce.run import read_results as read_results
from torchcaps.reproduce.run import reproduce as reproduce
from torchcaps.reproduce.table import results_table as results_table
from torchcaps.reproduce.table import viewpoint_lines as viewpoint_lines
from torchcaps.reproduce.table import write_table as write_table

"""Published experiments, run and set beside their published figures."""

from torchcaps.reproduction.measures import MEASURES as MEASURES
from torchcaps.reproduction.measures import register_measure as register_measure
from torchcaps.reproduction.result import Result as Result
from torchcaps.reproduction.result import read_results as read_results
from torchcaps.reproduction.run import reproduce as reproduce
from torchcaps.reproduction.table import Results as Results
from torchcaps.reproduction.table import field_tables as field_tables
from torchcaps.reproduction.table import results_table as results_table
from torchcaps.reproduction.table import viewpoint_lines as viewpoint_lines
from torchcaps.reproduction.table import write_field as write_field
from torchcaps.reproduction.table import write_table as write_table

"""Published experiments, run and set beside their published figures."""

from torchcaps.reproduce.field import field_tables, write_field
from torchcaps.reproduce.measures import MEASURES, Trained, register_measure
from torchcaps.reproduce.run import Result, read_results, reproduce
from torchcaps.reproduce.table import results_table, viewpoint_lines, write_table

__all__ = [
    "MEASURES", "Result", "Trained", "field_tables", "read_results", "register_measure", "reproduce", "results_table",
    "viewpoint_lines", "write_field", "write_table",
]  # fmt: skip

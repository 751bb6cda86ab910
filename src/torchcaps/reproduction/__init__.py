"""Published experiments, run and set beside their published figures."""

from torchcaps.reproduction.measures import MEASURES, Trained, register_measure
from torchcaps.reproduction.run import Result, read_results, reproduce
from torchcaps.reproduction.table import (
    field_tables,
    results_table,
    viewpoint_lines,
    write_field,
    write_table,
)

__all__ = [
    "MEASURES",
    "Result",
    "Trained",
    "field_tables",
    "read_results",
    "register_measure",
    "reproduce",
    "results_table",
    "viewpoint_lines",
    "write_field",
    "write_table",
]

from torchcaps.reproduction.folds import (
    CrossValidation as CrossValidation,
    cross_validate as cross_validate,
)
from torchcaps.reproduction.head_audit import (
    Audit as Audit,
    AuditRow as AuditRow,
    audit as audit,
)
from torchcaps.reproduction.measures import (
    MEASURES as MEASURES,
    register_measure as register_measure,
)
from torchcaps.reproduction.run import reproduce as reproduce
from torchcaps.reproduction.table import (
    Result as Result,
    Results as Results,
    field_tables as field_tables,
    read_results as read_results,
    results_table as results_table,
    viewpoint_lines as viewpoint_lines,
    write_field as write_field,
    write_table as write_table,
)

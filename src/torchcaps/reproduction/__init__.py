"""Published experiments, run and set beside their published figures."""

from torchcaps.registry import import_submodules as _import_submodules
from torchcaps.reproduction.claim_runner import run_claims as run_claims
from torchcaps.reproduction.claim_table import (
    arms_table as arms_table,
    claims_table as claims_table,
    judge_claims as judge_claims,
)
from torchcaps.reproduction.claims import (
    Claim as Claim,
    ClaimResult as ClaimResult,
    ClaimVerdict as ClaimVerdict,
    judge_claim as judge_claim,
    list_claims as list_claims,
    load_claim as load_claim,
    read_claim_results as read_claim_results,
)
from torchcaps.reproduction.folds import (
    CrossValidation as CrossValidation,
    cross_validate as cross_validate,
)
from torchcaps.reproduction.measures import (
    MEASURES as MEASURES,
    register_measure as register_measure,
)
from torchcaps.reproduction.result import Result as Result, read_results as read_results
from torchcaps.reproduction.run import reproduce as reproduce
from torchcaps.reproduction.table import (
    Results as Results,
    field_tables as field_tables,
    results_table as results_table,
    viewpoint_lines as viewpoint_lines,
    write_field as write_field,
    write_table as write_table,
)

_import_submodules(f"{__name__}.claim_measures")

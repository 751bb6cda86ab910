from torchcaps.testing.compare import (
    PropertyError as PropertyError,
    assert_between as assert_between,
    assert_close as assert_close,
    assert_finite as assert_finite,
    assert_outcome as assert_outcome,
    relative_rms as relative_rms,
)
from torchcaps.testing.kernels import (
    KERNEL_LIMITS as KERNEL_LIMITS,
    KernelCheck as KernelCheck,
    check_kernels as check_kernels,
    kernel_errors as kernel_errors,
    survey as survey,
)
from torchcaps.testing.modules import (
    check_module as check_module,
    check_module_copies as check_module_copies,
    check_module_gradients as check_module_gradients,
    check_module_parameters as check_module_parameters,
    check_module_precision as check_module_precision,
    check_module_rows as check_module_rows,
    check_module_zeros as check_module_zeros,
)
from torchcaps.testing.outside import check_any as check_any
from torchcaps.testing.planted import (
    PlantedAccuracy as PlantedAccuracy,
    PlantedAnswers as PlantedAnswers,
    PlantedPair as PlantedPair,
    planted_answers as planted_answers,
    planted_pair as planted_pair,
    planted_votes as planted_votes,
)
from torchcaps.testing.properties import (
    check_ablations as check_ablations,
    check_copies as check_copies,
    check_extremes as check_extremes,
    check_gradients as check_gradients,
    check_permutations as check_permutations,
    check_precision as check_precision,
    check_purity as check_purity,
    check_ranges as check_ranges,
    check_router as check_router,
)
from torchcaps.testing.random import (
    random_capsules as random_capsules,
    random_votes as random_votes,
    seeded as seeded,
)

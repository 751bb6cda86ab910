"""Property checks and makers of random capsules, shipped so that routers and layers of one's own can prove themselves.

from torchcaps.testing import check_module, check_router, random_capsules
check_router(my_router)
check_module(my_layer, random_capsules(3, 6, 4))
"""

from torchcaps.testing.compare import PropertyError as PropertyError
from torchcaps.testing.compare import assert_between as assert_between
from torchcaps.testing.compare import assert_close as assert_close
from torchcaps.testing.compare import assert_finite as assert_finite
from torchcaps.testing.compare import assert_same_routing as assert_same_routing
from torchcaps.testing.compare import relative_rms as relative_rms
from torchcaps.testing.modules import check_module as check_module
from torchcaps.testing.modules import check_module_copies as check_module_copies
from torchcaps.testing.modules import check_module_gradients as check_module_gradients
from torchcaps.testing.modules import check_module_parameters as check_module_parameters
from torchcaps.testing.modules import check_module_precision as check_module_precision
from torchcaps.testing.modules import check_module_rows as check_module_rows
from torchcaps.testing.modules import check_module_zeros as check_module_zeros
from torchcaps.testing.properties import check_ablations as check_ablations
from torchcaps.testing.properties import check_batch_independence as check_batch_independence
from torchcaps.testing.properties import check_copies as check_copies
from torchcaps.testing.properties import check_extremes as check_extremes
from torchcaps.testing.properties import check_gradients as check_gradients
from torchcaps.testing.properties import check_permutations as check_permutations
from torchcaps.testing.properties import check_precision as check_precision
from torchcaps.testing.properties import check_purity as check_purity
from torchcaps.testing.properties import check_ranges as check_ranges
from torchcaps.testing.properties import check_router as check_router
from torchcaps.testing.random import random_capsules as random_capsules
from torchcaps.testing.random import random_votes as random_votes
from torchcaps.testing.random import seeded as seeded

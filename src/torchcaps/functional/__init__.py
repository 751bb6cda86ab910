"""Pure functions of tensors: no parameters, no state, no I/O. They read like the papers."""

from torchcaps.functional.fields import (
    ConvField as ConvField,
    ConvTransposeField as ConvTransposeField,
    DenseField as DenseField,
    Field as Field,
)
from torchcaps.functional.geometry import (
    coordinate_addition as coordinate_addition,
    matrix_votes as matrix_votes,
    receptive_centers as receptive_centers,
)
from torchcaps.functional.images import (
    move_by_matrix as move_by_matrix,
    shift_matrices as shift_matrices,
    standardize as standardize,
)
from torchcaps.functional.losses import (
    margin_loss as margin_loss,
    reconstruction_loss as reconstruction_loss,
    spread_loss as spread_loss,
)
from torchcaps.functional.points import (
    chamfer_distance as chamfer_distance,
    procrustes as procrustes,
)
from torchcaps.functional.random_coupling import (
    random_coupling as random_coupling,
    random_logits as random_logits,
)
from torchcaps.functional.routing import (
    dynamic_routing as dynamic_routing,
    em_routing as em_routing,
    random_routing as random_routing,
    uniform_routing as uniform_routing,
)
from torchcaps.functional.squash import (
    safe_norm as safe_norm,
    squash as squash,
    squash_with_length as squash_with_length,
    steep_squash_with_length as steep_squash_with_length,
)
from torchcaps.functional.votes import (
    DenseVotes as DenseVotes,
    ProductVotes as ProductVotes,
    Votes as Votes,
    linear_votes as linear_votes,
    straightness as straightness,
)

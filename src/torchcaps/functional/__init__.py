"""Pure functions of tensors: no parameters, no state, no I/O. They read like the papers."""

from torchcaps.functional.chance import random_coupling as random_coupling
from torchcaps.functional.chance import random_logits as random_logits
from torchcaps.functional.fields import Everything as Everything
from torchcaps.functional.fields import Field as Field
from torchcaps.functional.fields import Transposed as Transposed
from torchcaps.functional.fields import Windows as Windows
from torchcaps.functional.geometry import coordinate_addition as coordinate_addition
from torchcaps.functional.geometry import matrix_votes as matrix_votes
from torchcaps.functional.geometry import receptive_centres as receptive_centres
from torchcaps.functional.images import move_by_matrix as move_by_matrix
from torchcaps.functional.images import shift_matrices as shift_matrices
from torchcaps.functional.images import standardise as standardise
from torchcaps.functional.losses import margin_loss as margin_loss
from torchcaps.functional.losses import reconstruction_loss as reconstruction_loss
from torchcaps.functional.losses import spread_loss as spread_loss
from torchcaps.functional.routing import dynamic_routing as dynamic_routing
from torchcaps.functional.routing import em_routing as em_routing
from torchcaps.functional.routing import random_routing as random_routing
from torchcaps.functional.routing import uniform_routing as uniform_routing
from torchcaps.functional.squash import safe_norm as safe_norm
from torchcaps.functional.squash import squash as squash
from torchcaps.functional.squash import squash_with_length as squash_with_length
from torchcaps.functional.votes import GivenVotes as GivenVotes
from torchcaps.functional.votes import ProductVotes as ProductVotes
from torchcaps.functional.votes import Votes as Votes
from torchcaps.functional.votes import linear_votes as linear_votes

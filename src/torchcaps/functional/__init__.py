"""Pure functions of tensors: no parameters, no state, no I/O. They read like the papers."""

from torchcaps.functional.losses import margin_loss as margin_loss
from torchcaps.functional.losses import reconstruction_loss as reconstruction_loss
from torchcaps.functional.losses import spread_loss as spread_loss
from torchcaps.functional.routed import routed_dynamic as routed_dynamic
from torchcaps.functional.routing import dynamic_routing as dynamic_routing
from torchcaps.functional.routing import uniform_routing as uniform_routing
from torchcaps.functional.squash import safe_norm as safe_norm
from torchcaps.functional.squash import squash as squash
from torchcaps.functional.squash import squash_with_length as squash_with_length
from torchcaps.functional.votes import linear_votes as linear_votes

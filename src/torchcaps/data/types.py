"""What a training gets at a time: the same for every task and every source of data."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.utils._pytree import tree_map_only


class Batch(NamedTuple):
    """Some items of a data set.

    Attributes:
        inputs: float32; pictures in [0, 1].
        targets: what is known of each item, by name, a row an item.
        indices: rows of the data set.
    """

    inputs: Float[Tensor, "batch channels *space"]
    targets: dict[str, Tensor]
    indices: Int64[Tensor, " batch"]

    def to(self, device: torch.device | str) -> Batch:
        """The batch on a device.

        Args:
            device: of torch, such as "cuda".

        Returns:
            The moved batch.
        """
        return tree_map_only(Tensor, lambda tensor: tensor.to(device), self)

"""Training by drawings that add up: each labeled capsule draws, and the sum is the picture.

As the task "multilabel", without what each digit looks like alone.
"""

import torch
from torch import Tensor

from torchcaps.data import Batch
from torchcaps.functional import reconstruction_loss
from torchcaps.tasks import Multilabel, register_task
from torchcaps.types import Capsules


@register_task("summed_drawings")
class SummedDrawings(Multilabel):
    """Several classes an image, whose drawings are summed and compared with the image."""

    def _reconstruction_error(self, capsules: Capsules, batch: Batch) -> Tensor:
        labels = batch.targets["single_label"].unbind(1)
        drawn = sum(self.model.reconstruct(capsules, column) for column in labels)
        picture = batch.inputs
        # Where the picture is as bright as can be, digits may have added up to more.
        drawn = torch.where(picture < 1, drawn, drawn.clamp(max=1))
        return reconstruction_loss(drawn, picture)

"""Where the images of each training step come from.

The loop takes its steps from a `BatchSource` and knows nothing else of the training images. A
source that serves one epoch from any step on, in the same order each time, lets a run continue bit
for bit.
"""

from collections.abc import Iterator
from typing import Protocol

from torch import Tensor

from torchcaps.data import ImageSet
from torchcaps.data.files import stream
from torchcaps.distributed import current
from torchcaps.settings import TrainConfig
from torchcaps.training.sampling import epoch_permutation, split_batches


class BatchSource(Protocol):
    """The images of all ranks together, step by step. Every epoch has equally many steps."""

    def steps(self, epoch: int) -> int:
        """Number of steps of an epoch.

        Args:
            epoch: its number, counted from 0.
        """

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[ImageSet, Tensor]]:
        """The images of the steps of an epoch.

        Args:
            number: of the epoch, counted from 0.
            start: number of steps that are left out at its beginning, because they are done.

        Returns:
            For each step a set, and the indices `[samples]` of its images in that set.
        """


class SetBatches:
    """The batches of a set of images, in the order of (seed, epoch).

    Args:
        images: to train on.
        config: has the seed, and the number of images of an epoch and of a batch.
        smallest: a last batch of fewer images joins the one before it.
    """

    def __init__(self, images: ImageSet, config: TrainConfig, smallest: int = 1) -> None:
        self.images = images
        self.config = config
        self.smallest = smallest

    def steps(self, epoch: int) -> int:
        """Number of steps of an epoch, which counts from 0."""
        return len(self._indices(epoch))

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[ImageSet, Tensor]]:
        """The set and the indices of each step; see `BatchSource`."""
        return stream(self.images, self._indices(number)[start:], current().padded_shard)

    def _indices(self, epoch: int) -> list[Tensor]:
        """Indices `[samples]` of the images of each step of an epoch."""
        order = epoch_permutation(self.config, epoch, self.images.labels)
        images_per_step = (self.config.training.batch_size or 1) * self.config.optimizer.accumulate
        return split_batches(order.to(self.images.images.device), images_per_step, self.smallest)

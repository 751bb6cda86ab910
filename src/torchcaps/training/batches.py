"""Where the images of each training step come from.

The loop takes its steps from `DatasetBatches` or `LoaderBatches`, and knows nothing else of the
training images. Both serve an epoch from any step on; in the same order each time, this lets a run
continue bit for bit. Every epoch has equally many steps.
"""

from collections.abc import Iterator

from torch import Generator, Tensor

from torchcaps.data import Batch, Dataset
from torchcaps.distributed import current
from torchcaps.evaluation.forward import device_of
from torchcaps.settings import TrainConfig
from torchcaps.tasks import Task
from torchcaps.training.sampling import ITEMS, epoch_permutation, split_batches, step_seed


class DatasetBatches:
    """The batches of a data set, in the order of (seed, epoch).

    Args:
        images: to train on.
        task: names the targets; a last batch of fewer images than its model takes joins the one
            before it.
        config: has the seed, and the number of images of an epoch and of a batch.
    """

    def __init__(self, images: Dataset, task: Task, config: TrainConfig) -> None:
        self.images = images
        self.task = task
        self.config = config

    def steps(self, epoch: int) -> int:
        """Number of steps of an epoch, which counts from 0."""
        return len(self._indices(epoch))

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of all ranks together of an epoch, on the device of the model.

        Args:
            number: of the epoch, counted from 0.
            start: number of steps that are left out at its beginning, because they are done.
        """
        images = self.images
        index_batches = self._indices(number)
        first_step = number * len(index_batches)
        steps = range(first_step + start, first_step + len(index_batches))
        generators = (
            Generator().manual_seed(step_seed(self.config, step, ITEMS)) for step in steps
        )
        targets = {name: images.targets[name] for name in self.task.targets}
        shard = current().padded_shard
        for batch in images.batches(index_batches[start:], targets, generators, shard):
            yield batch.to(device_of(self.task.model))

    def _indices(self, epoch: int) -> list[Tensor]:
        """Indices `[samples]` of the images of each step of an epoch."""
        order = epoch_permutation(self.config, epoch, self.images.labels)
        images_per_step = (self.config.training.batch_size or 1) * self.config.optimizer.accumulate
        return split_batches(order, images_per_step, self.task.spec.smallest_batch)

"""Batches, networks and runs, for the tests of tasks."""

import torch

from torchcaps.models import CNN

# Of 9 steps on 40 samples: 3 epochs of 3 batches.
SHORT_RUN = {"epochs": 3, "batch_size": 8, "holdout": 11, "checkpoint_every": 2, "device": "cpu"}


def cnn(**options):
    """A small network without capsules, of three classes, with the same weights each time."""
    torch.manual_seed(0)
    return CNN(3, 1, 20, channels=(4,), kernels=(3,), hidden=(8,), **options)


def batch_of(task, images, indices, generator=None):
    """A batch as a training makes it, or an evaluation, by the mode of the task."""
    generator = generator or torch.Generator()
    if task.training:
        targets = {name: images.targets[name] for name in task.targets}
        [batch] = images.batches([indices], targets, [generator])
    else:
        [batch] = images.batches([indices], task.eval_targets(images))
    return task.augment(batch, generator)

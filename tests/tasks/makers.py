"""Batches of a task, for its tests."""

import torch


def batch_of(task, images, indices, generator=None):
    """A batch as a training makes it, or an evaluation, by the mode of the task."""
    generator = generator or torch.Generator()
    if task.training:
        targets = {name: images.targets[name] for name in task.targets}
        [batch] = images.batches([indices], targets, [generator])
    else:
        [batch] = images.batches([indices], task.eval_targets(images))
    return task.augment(batch, generator)

"""Random changes to a batch of images, each sample its own, in batched operations on their device.

Every function draws on its generator's device, so that a CPU generator gives the same changes
whatever device the images are on. Zero comes in from outside the picture. Each returns a new tensor
of the type of its images, `[batch, channels, height, width]`; those not said to be of floats take
any type. ValueError: for other axes, or an amount out of range.

An augmentation is one file: a function, a dataclass of its settings, and `register_augmentation`.
"""

from torchcaps.data.augment._registry import (
    AUGMENTATIONS as AUGMENTATIONS,
    Augmentation as Augmentation,
    ordered_augmentations as ordered_augmentations,
    register_augmentation as register_augmentation,
)
from torchcaps.data.augment.transforms import (
    Transforms as Transforms,
    refuse_augmentations as refuse_augmentations,
)
from torchcaps.registry import import_submodules

import_submodules(__name__)

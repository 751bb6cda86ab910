"""Random changes of training images, called augmentations; each image of a batch gets its own.

Images are tensors `[batch, channels, height, width]`, and every augmentation returns a new tensor
of their type. It draws random numbers on the device of its generator, so that a generator on the
CPU gives the same changes whatever device the images are on. Where a change needs pixels from
outside an image, they are 0. Only `color_jitter` requires floats. Other axes, and amounts out of
range, raise ArgumentError, which is a ValueError.

An augmentation is a function, a dataclass of its settings, and `register_augmentation`: those of
the library are in `changes`, those of a user in any file. `Transforms` applies all that the
settings of a run switch on; `refuse_augmentations` raises for a run that cannot use any.
"""

from torchcaps.registry import import_submodules, lazy_names

__all__, __getattr__ = lazy_names(__name__, __file__)

import_submodules(__name__)  # each file registers its augmentations

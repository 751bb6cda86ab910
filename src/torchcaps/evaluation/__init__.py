"""Evaluation of trained models in figures, without plots and files.

Unless said otherwise, `images` are `[n, channels, height, width]` in [0, 1], n at least 1, and
`labels` `[n]` int64 class indices. A `model` maps `batch_size` images at a time to
`[batch, classes]` activations in [0, 1]; it runs in evaluation mode, and has its own mode back
afterwards. Arguments that do not fit, or are out of range, raise ArgumentError, a ValueError.
"""

from torchcaps.registry import lazy_names

__all__, __getattr__ = lazy_names(__name__, __file__)

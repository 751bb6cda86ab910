"""Arrays in, matplotlib figures out.

No file is written, no model called, no global state of matplotlib touched. Every figure is a
`matplotlib.figure.Figure`: save it with `figure.savefig(path)`; a notebook shows it by itself.
Arrays may be anything that `numpy.asarray` takes, CPU tensors included. Images are
`[n, channels, height, width]` in [0, 1] (integers: 0-255), at most 1024 of them, labels `[n]`
indices of classes, and long names of classes are shortened in the middle. Arguments that do not
fit raise ArgumentError, a ValueError.
"""

from torchcaps.registry import lazy_names

__all__, __getattr__ = lazy_names(__name__, __file__)

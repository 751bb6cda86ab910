"""Trained models as files that other programs run: a format a file, registered by its name.

`export` writes a file and checks it before the file gets its name.
"""

from torchcaps.registry import lazy_names

__all__, __getattr__ = lazy_names(__name__, __file__)

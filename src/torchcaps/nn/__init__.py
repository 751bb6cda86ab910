"""Layers with parameters. `forward` checks, calls `ops` or `functional`, and returns Capsules.

A router of this package is one file that registers itself: that needs no import here. The imports
below only make names public.
"""

from torchcaps.registry import import_submodules, lazy_names

__all__, __getattr__ = lazy_names(__name__, __file__)

import_submodules(__name__)

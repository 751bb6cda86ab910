"""Published systems, one file each, and the registry that finds them.

A model of this package is one file: it registers itself, and no import names it here.
"""

from torchcaps.registry import import_submodules, lazy_names

__all__, __getattr__ = lazy_names(__name__, __file__)

import_submodules(__name__)

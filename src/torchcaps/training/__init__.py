"""The loop, optimization, checkpoints, resume, the run folder.

Names are loaded when first used, so that a training imports no more than it needs.
"""

from torchcaps.registry import lazy_names

__all__, __getattr__ = lazy_names(__name__, __file__)

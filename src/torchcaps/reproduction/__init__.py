"""Published experiments, run and set beside their published figures."""

from torchcaps.registry import lazy_names

__all__, __getattr__ = lazy_names(__name__, __file__)

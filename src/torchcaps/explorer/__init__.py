"""The page that explains a network while you draw: as a file, or by a small server."""

from torchcaps.registry import lazy_names

__all__, __getattr__ = lazy_names(__name__, __file__)

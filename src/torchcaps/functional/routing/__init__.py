"""One file, one published routing algorithm: the readable reference."""

from torchcaps.registry import lazy_names

__all__, __getattr__ = lazy_names(__name__, __file__)

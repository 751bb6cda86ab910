"""Evaluation of trained models, prediction, and reports: figures, plots, an HTML page.

Names are loaded when first used, so that a prediction does not wait for reports.
"""

from torchcaps.registry import load_name, stub_names

_MODULES = stub_names(__file__)
__all__ = list(_MODULES)


def __getattr__(name: str) -> object:
    return load_name(__name__, _MODULES, name)

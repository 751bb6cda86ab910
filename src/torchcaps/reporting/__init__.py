"""Evaluation of trained models, prediction, and reports: figures, plots, an HTML page.

Names are loaded when first used, so that a prediction does not wait for reports.
"""

from torchcaps.registry import lazy_names

__all__, __getattr__ = lazy_names(__name__, __file__)

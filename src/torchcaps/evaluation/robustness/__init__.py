"""Robustness of a model to changed images, and to images of unknown kinds."""

"""Accuracy and calibration of a model."""

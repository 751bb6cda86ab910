"""Measurements of speed, memory and accuracy: `python -m benchmarks.NAME --help`, from a checkout."""

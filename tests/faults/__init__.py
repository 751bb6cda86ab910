"""Faults put into a copy of the library, one at a time, to see whether its tests notice: `python -m tests.faults`."""

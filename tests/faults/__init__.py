"""Faults in a copy of the library, one at a time: do its tests notice? `python -m tests.faults`."""

"""Data sets of claims, a file each."""

"""Measures of claims, a file each."""

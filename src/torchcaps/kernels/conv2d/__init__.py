"""Convolutions with large kernels."""

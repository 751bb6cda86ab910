"""GPU paths in Triton."""

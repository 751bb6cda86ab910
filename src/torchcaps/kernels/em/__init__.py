"""EM routing."""

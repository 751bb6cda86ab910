"""Cache-blocked CPU paths."""

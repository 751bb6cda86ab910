"""Routing by agreement of linear votes that are never stored."""

"""Routing by agreement."""

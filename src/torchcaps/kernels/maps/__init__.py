"""Routing by agreement of maps of votes, as convolutions make them."""

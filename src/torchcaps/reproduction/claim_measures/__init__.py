"""Measures of published claims, a file each; `recipes/claims/` has their protocols."""

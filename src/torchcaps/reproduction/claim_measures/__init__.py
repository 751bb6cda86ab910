"""Measures of published claims, a file each; `recipes/claims/` has their protocols."""

from torchcaps.registry import import_submodules

import_submodules(__name__)

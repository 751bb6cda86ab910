"""What the page shows of a model: one function each, found by name.

A file here is enough to add one.
"""

from torchcaps.explorer.views._base import VIEWS, View, open_views, register_view
from torchcaps.explorer.views.capsules import infer
from torchcaps.explorer.views.routing import routing
from torchcaps.registry import import_submodules

import_submodules(__name__)

__all__ = ["VIEWS", "View", "infer", "open_views", "register_view", "routing"]

"""What the page shows of a model: one class each, found by name.

A file here is enough to add one.
"""

from torchcaps.explorer.views._base import VIEWS, View, open_views, register_view
from torchcaps.explorer.views.infer import Infer, Inference
from torchcaps.explorer.views.routing import Routing
from torchcaps.registry import import_submodules

import_submodules(__name__)

__all__ = [
    "VIEWS",
    "Infer",
    "Inference",
    "Routing",
    "View",
    "open_views",
    "register_view",
]

"""The interactive page: draw, and watch the capsules. `Session` is the model's side."""

from torchcaps.explorer.pictures import Motion, overlay
from torchcaps.explorer.session import Session, explore, open_session
from torchcaps.explorer.views import VIEWS, View, open_views, register_view

__all__ = [
    "VIEWS",
    "Motion",
    "Session",
    "View",
    "explore",
    "open_session",
    "open_views",
    "overlay",
    "register_view",
]

"""The interactive page: draw, and watch the capsules. `Session` is the model's side; `server` needs starlette."""

from torchcaps.explorer.session import Look, Session, Sweep, open_session, overlay

__all__ = ["Look", "Session", "Sweep", "open_session", "overlay"]

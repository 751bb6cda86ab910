"""The interactive page: draw, and watch the capsules. `Session` is the model's side; `server` needs starlette."""

from torchcaps.explorer.session import Look as Look
from torchcaps.explorer.session import Session as Session
from torchcaps.explorer.session import Sweep as Sweep
from torchcaps.explorer.session import laid_over as laid_over
from torchcaps.explorer.session import open_session as open_session

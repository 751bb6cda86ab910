from torchcaps.explorer.pictures import Motion as Motion, overlay as overlay
from torchcaps.explorer.server import explore as explore
from torchcaps.explorer.session import Session as Session, open_session as open_session
from torchcaps.explorer.views import (
    VIEWS as VIEWS,
    View as View,
    open_views as open_views,
    register_view as register_view,
)

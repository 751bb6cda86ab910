from torchcaps.explorer.server import explore as explore
from torchcaps.explorer.session import (
    Motion as Motion,
    Session as Session,
    open_session as open_session,
    overlay as overlay,
)
from torchcaps.explorer.views import (
    VIEWS as VIEWS,
    View as View,
    open_views as open_views,
    register_view as register_view,
)

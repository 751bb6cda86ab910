import pytest

from torchcaps.reporting import api


@pytest.fixture(scope="module", autouse=True)
def _no_plots():
    """Skip drawing, which takes most of the time of a tiny run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "can_plot", lambda: False)
        yield

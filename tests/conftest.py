"""Shared by all tests: few threads, and real data only where they are."""

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
# Files that take half a minute begin first, so that no worker waits for another one at the end.
LONG_FILES = (
    "test_fake_gpu.py",
    "test_export.py",
    "test_processes.py",
    "test_head_audit.py",
    "test_campaign.py",
    "test_recipes.py",
    "test_own_system.py",
    "test_matrix.py",
)
SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


def pytest_addoption(parser):
    parser.addoption(
        "--case", type=Path, help="repeat the cases in this file, which a campaign wrote"
    )
    parser.addoption(
        "--typecheck",
        action="store_true",
        help="check the shapes in signatures of torchcaps.functional",
    )


def pytest_configure(config):
    # Annotations cost nothing in use; here jaxtyping and beartype hold every call to them. Not by default: compiled
    # functions cannot be traced through the checks.
    if config.getoption("--typecheck"):
        from jaxtyping import install_import_hook

        install_import_hook("torchcaps.functional", "beartype.beartype")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in LONG_FILES)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    torch.set_num_threads(1)  # a test before it may have taken more


@pytest.fixture
def no_plots(monkeypatch):
    """Skip drawing, which takes most of the time of a tiny run."""
    monkeypatch.setattr("torchcaps.reporting.api.can_plot", lambda: False)


@pytest.fixture
def restore():
    """Restore registries at the end of a test: `restore(ROUTERS)`."""
    with ExitStack() as stack:

        def restore_later(*registries):
            for registry in registries:
                stack.enter_context(registry.restored())

        yield restore_later


@pytest.fixture
def shared_data() -> Path:
    """The folder of real data sets; tests that need it are skipped where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no real data beside the checkout ({SHARED_DATA.name} folder is absent)")
    return SHARED_DATA

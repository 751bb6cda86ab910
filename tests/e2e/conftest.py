from __future__ import annotations

import subprocess

import pytest

from training.makers import write_bars


@pytest.fixture(scope="session")
def bars(tmp_path_factory):
    return write_bars(tmp_path_factory.mktemp("bars") / "bars.npz")


@pytest.fixture
def small_disk(tmp_path):
    """A function that mounts a disk of a few kilobytes; it can be called again to resize it or to make it read-only."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = []

    def mount(size, mode="rw"):
        options = f"size={size},{mode}" + (",remount" if mounted else "")
        try:
            done = subprocess.run(
                ["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, text=True, check=False
            )
        except OSError as error:
            pytest.skip(f"a small disk cannot be mounted here ({error})")
        if done.returncode:
            pytest.skip(f"a small disk cannot be mounted here ({done.stderr.strip()})")
        mounted.append(True)
        return place

    yield mount
    if mounted:
        subprocess.run(["umount", place], check=True)

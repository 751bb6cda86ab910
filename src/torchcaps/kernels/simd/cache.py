"""Keeping compiled loops, so that a machine compiles them once. Needs numba."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numba
from numba.misc.appdirs import AppDirs


def keep_compiled(loops: Iterable[Any], sources: Iterable[str]) -> Path | None:
    """Let numba keep machine code in the user's cache folder; never beside the package, which may be read-only.

    Args:
        loops: compiled functions that are called from Python.
        sources: files that they were written in; their contents name the folder, so that no old code is taken for new.

    Returns:
        The folder, or None where none can be written: then every process compiles anew, which takes a few seconds.
    """
    config: Any = numba.config
    try:
        digest = hashlib.sha256(b"".join(Path(source).read_bytes() for source in sources)).hexdigest()[:12]
        folder = Path(config.CACHE_DIR or AppDirs("torchcaps", appauthor=False).user_cache_dir) / f"loops-{digest}"
        if not folder.is_absolute():  # no home folder
            return None
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        return None
    before, config.CACHE_DIR = config.CACHE_DIR, str(folder)
    try:
        for loop in loops:
            loop.enable_caching()
    finally:
        config.CACHE_DIR = before
    return folder

"""Compiled loops; the only place where numba is imported.

Compiled code is kept in the user's cache folder, not beside the sources. `NUMBA_CACHE_DIR` chooses
another place. Where neither can be written every process compiles anew.
"""

from __future__ import annotations

import os
from pathlib import Path


def _cache_folder() -> Path | None:
    """Return a writable folder for compiled code, or None."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - never fails
    folder = Path(chosen) if chosen else Path(base) / "sieve" / "numba"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


_FOLDER = _cache_folder()
CAN_CACHE = _FOLDER is not None
"""Whether compiled code outlives the process."""

if _FOLDER is not None:
    os.environ["NUMBA_CACHE_DIR"] = str(_FOLDER)

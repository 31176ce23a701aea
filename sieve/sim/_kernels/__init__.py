"""Compiled loops; the only place where numba is imported.

Compiled code is kept in the user's cache folder, not beside the sources, under a name made from all
sources of this folder: numba itself notices edits of the file that a function stands in, but not of
the files it calls. `NUMBA_CACHE_DIR` chooses another place. Where neither can be written every
process compiles anew.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numba as nb
from numba.core import config as _numba_config

config: Any = _numba_config


def _cache_folder() -> Path | None:
    """Return a writable folder for compiled code, or None."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - never fails
    root = Path(chosen) if chosen else Path(base) / "sieve" / "numba"
    folder = root / source_hash()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None


def source_hash(folder: Path | None = None) -> str:
    """Return a name for the contents of all Python files in `folder` (default: this one)."""
    digest = hashlib.sha256()
    for path in sorted((folder or Path(__file__).parent).glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


_FOLDER: Final = _cache_folder()


def is_compiled() -> bool:
    """Return whether the kernel that most replays take lies compiled on disk."""
    return _FOLDER is not None and any(_FOLDER.rglob("events.advance-*.nbi"))


def jit(function: Callable[..., Any], *, inline: bool = False) -> Any:
    """Return `function` compiled without the interpreter lock, kept on disk where possible.

    With `inline` its code is put into its callers: a call costs atomic counts of references for
    every array it is given.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "forceinline": inline}
    if _FOLDER is None:
        return nb.njit(**options)(function)
    before = config.CACHE_DIR
    config.CACHE_DIR = str(_FOLDER)
    try:
        return nb.njit(cache=True, **options)(function)
    finally:
        config.CACHE_DIR = before


def inlined(function: Callable[..., Any]) -> Any:
    """Return `function` compiled into its callers."""
    return jit(function, inline=True)

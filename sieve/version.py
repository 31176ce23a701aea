"""The version of this package; `pyproject.toml` states the same."""

from __future__ import annotations

__version__ = "0.1.0"

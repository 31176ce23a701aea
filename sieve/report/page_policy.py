"""Pages without any script say so, and a browser then runs none."""

from __future__ import annotations

from typing import Final

POLICY: Final = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
)
"""For the head of a page that has a style sheet and nothing else."""

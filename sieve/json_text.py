"""JSON of strangers: whole numbers stay small enough to be turned into floats."""

from __future__ import annotations

import json
from typing import Any, Final

MAX_DIGITS: Final = 300
"""The largest float has 309 digits."""


def whole_number(text: str) -> int:
    """Return a whole number; for `parse_int` of `json`.

    Raises:
        ValueError: so many digits that no float holds it.
    """
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a whole number of {len(text)} digits; at most {MAX_DIGITS} are read")
    return int(text)


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: no JSON, nested too deeply, or a number that no float holds.
    """
    try:
        return json.loads(text, parse_int=whole_number)
    except RecursionError:
        raise ValueError("nested too deeply") from None

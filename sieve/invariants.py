"""What must hold whatever the input is: a breach is a bug of sieve, never a fault of the user.

The checks that cost next to nothing always run. Those that walk over every request of every replay
run when the environment has `SIEVE_CHECK=1`, as in continuous integration.
"""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "SIEVE_CHECK"


def checking() -> bool:
    """Return whether the costly checks are on: `SIEVE_CHECK` is set, and to something but 0."""
    return os.environ.get(VARIABLE, "0") not in {"", "0"}


def hold(condition: object, message: str) -> None:
    """Raise unless `condition` is true; unlike `assert`, also under `python -O`.

    Raises:
        AssertionError: an invariant is broken, which is a bug.
    """
    if not condition:
        raise AssertionError(message)

"""Find the language-model deployment that meets your service levels, without touching a GPU.

`import sieve` loads nothing heavy; `sieve.run` imports what it needs when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sieve.version import __version__

__all__ = [
    "SieveError", "__version__", "batch", "bound", "fit", "nightly", "replay", "run",
]  # fmt: skip

if TYPE_CHECKING:
    from sieve.api import run
    from sieve.detail import replay
    from sieve.errors import SieveError
    from sieve.jobs.batch import batch
    from sieve.jobs.nightly import nightly
    from sieve.single import bound, fit

_HOMES: Final = {
    "SieveError": "sieve.errors",
    "batch": "sieve.jobs.batch",
    "bound": "sieve.single",
    "fit": "sieve.single",
    "nightly": "sieve.jobs.nightly",
    "replay": "sieve.detail",
    "run": "sieve.api",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'sieve' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

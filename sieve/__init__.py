"""Find the language-model deployment that meets your service levels, without touching a GPU.

`import sieve` loads nothing heavy; `sieve.run` imports what it needs when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sieve.version import __version__

__all__ = ["SieveError", "__version__", "batch", "replay", "run"]

if TYPE_CHECKING:
    from sieve.api import run
    from sieve.detail import replay
    from sieve.errors import SieveError
    from sieve.jobs.batch import batch


def __getattr__(name: str) -> Any:
    if name == "run":
        from sieve.api import run

        return run
    if name == "replay":
        from sieve.detail import replay

        return replay
    if name == "batch":
        from sieve.jobs.batch import batch

        return batch
    if name == "SieveError":
        from sieve.errors import SieveError

        return SieveError
    raise AttributeError(f"module 'sieve' has no attribute {name!r}")

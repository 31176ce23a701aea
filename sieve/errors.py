"""Every error that sieve raises on purpose.

```
Exception
 └─ SieveError            bad input; the command line answers with exit code 2
     ├─ SpecError         run spec or grid file; carries every fault at once
     ├─ InvalidInput      a formula's or a function's argument (also a ValueError)
     ├─ CatalogError      unknown model, accelerator or engine; carries the nearest names
     ├─ TraceError        traffic file or synthetic traffic
     ├─ TableError        kernel table
     ├─ ResultError       run folder, measured results
     ├─ CoverageError     a kernel table has no answer for this shape
     ├─ ExportError       a deployment that cannot be written down
     └─ NotYetError       part of the contract whose machinery is not in this version
```

A message says what was found, where, what is allowed and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class SieveError(Exception):
    """Base of all errors that are about the user's input."""


@dataclass(frozen=True)
class Fault:
    """One fault of a spec: dotted path, what is wrong and a remedy, and the line if known."""

    path: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        where = f" (line {self.line})" if self.line is not None else ""
        return f"{self.path}{where}: {self.message}" if self.path else self.message


class SpecError(SieveError):
    """A run spec or grid file with one or more faults, all listed."""

    def __init__(self, source: str, faults: Sequence[Fault]) -> None:
        self.source = source
        self.faults = tuple(faults)
        count = len(self.faults)
        head = f"{source}: {count} fault{'s' if count != 1 else ''}"
        super().__init__("\n".join([head, *(f"  {fault}" for fault in self.faults)]))


class InvalidInput(SieveError, ValueError):
    """An argument outside the domain of a formula."""


class CatalogError(SieveError):
    """An unknown or unhandled model, accelerator or engine."""


class TraceError(SieveError):
    """A traffic file that cannot be read as requests."""


class TableError(SieveError):
    """A kernel table that fails its schema or its checks."""


class ResultError(SieveError):
    """A run folder or result file that cannot be used."""


class CoverageError(SieveError):
    """A kernel table has no answer for this shape and none may be invented."""


class ExportError(SieveError):
    """A deployment that cannot be expressed in the requested format."""


class NotYetError(SieveError):
    """A key, flag or command of the contract whose machinery is not in this version."""

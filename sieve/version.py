"""The version of this package, as `pyproject.toml` states it, and of the files that it reads."""

from __future__ import annotations

__version__ = "0.1.0"


def schema_fault(found: object, known: str | int, remake: str) -> str:
    """Return why a file of a schema version is not read and what to do, nothing where it is.

    Files of one major version are read by every release that knows it.

    Args:
        found: what the file names as its schema version, None where it names none.
        known: the version this release writes, such as `1.0` or 1.
        remake: how to get a file that this release reads.
    """
    theirs, ours = str(found).partition(".")[0], str(known).partition(".")[0]
    if theirs == ours:
        return ""
    if found is None:
        return f"it names no schema version, this sieve reads {known!r}: {remake}"
    newer = theirs.isdecimal() and theirs.isascii() and len(theirs) < 10 and int(theirs) > int(ours)
    fix = "a newer sieve wrote it; upgrade with `pip install --upgrade sieve-sizing`"
    if not newer:
        fix = f"{remake}; CHANGELOG.md says what changed"
    return f"schema version {repr(found)[:40]}, this sieve reads {known!r}: {fix}"

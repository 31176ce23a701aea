"""Write a calibration file, and corrections of the memory ledger into one."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from sieve.errors import ResultError
from sieve.memory.corrections import (
    SCHEMA_VERSION,
    SECTION,
    Correction,
    CorrectionKey,
    LogCorrection,
    corrections_of,
    matching,
    merged,
    read_document,
    to_entries,
)


def add_correction(path: Path, key: CorrectionKey, log: LogCorrection) -> Correction:
    """Merge one log into a calibration file, which is made if missing; return its entry.

    The file is replaced in one step, what it holds beside corrections of the ledger is kept, and a
    log that it holds already is replaced: reading a log twice changes nothing.

    Raises:
        ResultError: the file is no calibration file or cannot be written.
    """
    document: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
    if path.exists():
        document = read_document(path)
    known = merged(corrections_of(document, str(path)), key, log)
    document[SECTION] = to_entries(known)
    write_document(path, document)
    found = matching(known, key)
    assert found is not None
    return found


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Write a calibration file: beside the target first, then moved there.

    Raises:
        ResultError: it cannot be written.
    """
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    target = path.resolve()
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        written = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            mode = target.stat().st_mode & 0o777 if target.exists() else 0o644
            written.chmod(mode)
            written.replace(target)
        except BaseException:
            written.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ResultError(f"{path}: cannot be written: {error.strerror}") from error

"""JSON files of objects: one document, a list of them, or one a line, an object at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from sieve.errors import TraceError
from sieve.traces.files import TraceFile
from sieve.traces.jsonl import no_number
from sieve.traces.unpack import HEAD_BYTES

Found = tuple[dict[str, Any], str, int]
"""An object, its place for messages, and its number: of the line, or of the entry in a list."""
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_COMMA: Final = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")


def documents(file: TraceFile) -> Iterator[Found]:
    """Yield the objects of a file; what is none is a fault of its line or entry.

    Raises:
        TraceError: no JSON, or something else than objects.
    """
    if file.is_parquet or file.columns:
        raise TraceError(
            f"{file.label}: a table, and this format is JSON; name another (--format), or none "
            "to have it recognised"
        )
    start = file.head.lstrip()
    if start.startswith(b"["):
        yield from _entries(file)
    elif b"\n" not in start.rstrip() and len(file.head) < HEAD_BYTES:
        yield from _only(file)
    elif _is_whole(start.split(b"\n", 1)[0]):
        yield from _lines(file)
    else:
        yield from _only(file)


def fault(file: TraceFile, number: int, where: str, text: str) -> None:
    """Note the object with this number as one that cannot be read.

    Raises:
        TraceError: faults stop.
    """
    kind = text.removeprefix(f"{where}: ").split(" is ")[0].split(" (")[0][:60]
    file.faults.add(number - file.first_row, kind, text, file.first_row)


def _is_whole(line: bytes) -> bool:
    """Tell whether a line is not the beginning of a document over several lines."""
    try:
        json.loads(line)
    except json.JSONDecodeError as error:
        return error.pos < len(error.doc.rstrip())
    except (ValueError, RecursionError):
        return True
    return True


def _lines(file: TraceFile) -> Iterator[Found]:
    first = 1
    for piece in file.pieces():
        lines = piece.split(b"\n")
        for number, line in enumerate(lines, first):
            if not line.strip():
                continue
            where = f"{file.label}, line {number}"
            try:
                item = json.loads(line, parse_constant=no_number)
            except (ValueError, RecursionError) as error:
                fault(file, number, where, f"{where}: no JSON ({str(error)[:80]})")
                continue
            if isinstance(item, dict):
                yield item, where, number
            else:
                fault(file, number, where, _no_object(where, item))
        first += len(lines) - 1


def _entries(file: TraceFile) -> Iterator[Found]:
    """Yield the objects of a list; only one of them is built at a time."""
    text = file.content.decode("utf-8", errors="replace")
    read = json.JSONDecoder(parse_constant=no_number).raw_decode
    between = _COMMA.match
    at = _after(text, text.index("[") + 1)
    number, more = 0, text[at : at + 1] != "]"
    while more:
        number += 1
        try:
            item, at = read(text, at)
        except (ValueError, RecursionError) as error:
            raise _broken(file, text, getattr(error, "pos", at), str(error)) from None
        where = f"{file.label}, entry {number}"
        if isinstance(item, dict):
            yield item, where, number
        else:
            fault(file, number, where, _no_object(where, item))
        found = between(text, at)
        more = found is not None
        at = _after(text, at) if found is None else found.end()
    if text[at : at + 1] != "]":
        raise _broken(file, text, at, "expected ',' and an entry, or ']'")
    if _after(text, at + 1) != len(text):
        raise _broken(file, text, _after(text, at + 1), "text behind the list's end")


def _only(file: TraceFile) -> Iterator[Found]:
    """Yield the one object of a file that is a document over several lines."""
    text = file.content.decode("utf-8", errors="replace")
    try:
        item = json.loads(text, parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        raise _broken(file, text, getattr(error, "pos", 0), str(error)) from None
    where = f"{file.label}, entry 1"
    if isinstance(item, dict):
        yield item, where, 1
    else:
        fault(file, 1, where, _no_object(where, item))


def _after(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _broken(file: TraceFile, text: str, at: int, why: str) -> TraceError:
    line = text.count("\n", 0, at) + 1
    return TraceError(f"{file.label}, line {line}: no JSON ({why[:80]}); correct it or cut it out")


def _no_object(where: str, item: object) -> str:
    return f"{where}: expected a JSON object, found {str(item)[:40]!r}"

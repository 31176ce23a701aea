"""Change a valid input a little: its bytes, its lines, its cells, or a value of its document."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any, Final

MOST_BYTES: Final = 200_000
"""Larger results are cut: a fault that needs more is one of size, which has tests of its own."""

VALUES: Final[tuple[Any, ...]] = (
    None, True, False, 0, -1, 1, 2, -0.0, 0.5, 1e-320, 1e308, -1e308, float("nan"), float("inf"),
    2**31, 2**63, 2**64, 10**30, -(2**63) - 1, "", " ", "0", "-1", "1e400", "nan", "NaN", "null",
    "\x00", "\ud7ff\ufeff", "a" * 300, "../../etc/passwd", "<script>alert(1)</script>", "=1+1",
    "$(id)", "'; --", "%s%n", "2 s", "50 ms", "5 parsecs", "bf16", "fp8", "H100-SXM-80GB", [], {},
    [[]], [None], [0], [1, 1], {"": None}, {"a": {"a": {"a": []}}},
)  # fmt: skip
TOKENS: Final = (
    b"\x00", b"\xff", b"\xef\xbb\xbf", b"\r\n", b"\r", b"\n\n", b",", b",,,", b"\t", b":", b"- ",
    b"{", b"}", b"[", b"]", b'"', b"'", b"&a ", b"*a", b"<<: ", b"!!python/object:os.system ",
    b"NaN", b"Infinity", b"-1", b"1e999", b"99999999999999999999", b"0x10", b"null", b"true",
    b"\xe2\x80\xae", b"\\u0000", b"\\ud800", b"#", b"|", b">", b"%", b"@", b"`",
)  # fmt: skip


def mutate(seed: bytes, other: bytes, rng: random.Random) -> bytes:
    """Return a changed copy of `seed`; `other` is a second input to splice from."""
    change = rng.choice(_CHANGES)
    data = change(seed, other, rng)
    while rng.random() < 0.3:
        data = rng.choice(_CHANGES)(data, other, rng)
    return data[:MOST_BYTES]


def _bytes(data: bytes, other: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(5)
        if kind == 0 and out:
            out[at - 1] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del out[at : at + rng.choice((1, 1, 4, 64))]
        elif kind == 2:
            out[at:at] = rng.choice(TOKENS)
        elif kind == 3:
            out[at:at] = out[at : at + rng.choice((1, 8, 64))] * rng.choice((1, 2, 40))
        else:
            start = rng.randrange(len(other) + 1)
            out[at:at] = other[start : start + rng.choice((4, 32, 256))]
    return bytes(out)


def _lines(data: bytes, other: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    kind = rng.randrange(6)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, rng.choice(lines))
    elif kind == 2:
        lines[at] = lines[at] + b"\r"
    elif kind == 3:
        rng.shuffle(lines)
    elif kind == 4:
        lines = lines[:at]
    else:
        lines.insert(at, rng.choice(other.split(b"\n")))
    return b"\n".join(lines)


def _cells(data: bytes, _other: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    separator = rng.choice((b",", b": ", b"\t", b"="))
    cells = lines[at].split(separator)
    cells[rng.randrange(len(cells))] = _text(rng.choice(VALUES)).encode(errors="replace")
    lines[at] = separator.join(cells)
    return b"\n".join(lines)


def _document(data: bytes, _other: bytes, rng: random.Random) -> bytes:
    """Change a value inside the JSON document, or inside one line of a JSONL file."""
    try:
        return _dumped(_changed(json.loads(data), rng))
    except (ValueError, RecursionError):
        pass
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    try:
        lines[at] = _dumped(_changed(json.loads(lines[at]), rng))
    except (ValueError, RecursionError):
        return _cells(data, _other, rng)
    return b"\n".join(lines)


def _changed(document: Any, rng: random.Random) -> Any:
    document = copy.deepcopy(document)
    places = list(_places(document))
    if not places:
        return rng.choice(VALUES)
    holder, key = rng.choice(places)
    kind = rng.randrange(5)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[_text(rng.choice(VALUES))] = holder[key]
    elif kind == 2:
        holder[key] = [holder[key]] * rng.choice((0, 1, 2, 50))
    elif kind == 3:
        holder[key] = rng.choice(places)[0]
        holder[key] = copy.deepcopy(holder[key]) if holder[key] is not holder else None
    else:
        holder[key] = rng.choice(VALUES)
    return document


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) of a document."""
    found: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting and len(found) < 20_000:
        value = waiting.pop()
        keys: list[Any] = []
        if isinstance(value, dict):
            keys = list(value)
        elif isinstance(value, list):
            keys = list(range(len(value)))
        found.extend((value, key) for key in keys)
        waiting.extend(value[key] for key in keys)
    return found


def _dumped(document: Any) -> bytes:
    try:
        return json.dumps(document).encode()
    except (ValueError, RecursionError):
        return b"[" * 500


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


_CHANGES: Final[tuple[Callable[[bytes, bytes, random.Random], bytes], ...]] = (
    _bytes, _lines, _cells, _document, _document,
)  # fmt: skip

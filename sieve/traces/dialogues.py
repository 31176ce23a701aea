"""Data sets of texts: ShareGPT dialogues and vLLM's `custom` JSON lines.

They hold texts and no tokens. Recorded lengths are taken where they are (`input_length`,
`prompt_tokens` and the like); else the user declares how many characters a token has, and lengths
are estimates that say so. No tokenizer is run, and none is guessed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from sieve.errors import TraceError
from sieve.traces.documents import documents, fault
from sieve.traces.files import TraceFile
from sieve.traces.lengths import LengthTable
from sieve.traces.limits import MAX_TOKENS

INPUT: Final = ("input_length", "input_tokens", "prompt_tokens", "prompt_len")
OUTPUT: Final = ("output_length", "output_tokens", "completion_tokens", "output_len")


def read(
    file: TraceFile, characters_per_token: float | None, output_tokens: int | None
) -> LengthTable:
    """Return the lengths of each entry, in file order.

    Args:
        file: a JSON list (ShareGPT) or JSON lines (`custom`).
        characters_per_token: declared by the user for texts without recorded lengths.
        output_tokens: of entries that state no answer, as `--custom-output-len` does.

    Raises:
        TraceError: an entry without length or text; what is needed is said.
    """
    found = [0, 0, 0]  # recorded, estimated, left out
    characters = characters_per_token or 1.0
    sizes: tuple[list[int], list[int]] = ([], [])
    for entry, where, number in documents(file):
        try:
            pair = _recorded(entry, where) or _texts(entry, where, output_tokens)
        except TraceError as error:
            fault(file, number, where, str(error))
            continue
        if pair is None:
            found[2] += 1
            continue
        question, answer = pair
        estimated = isinstance(question, str) or isinstance(answer, str)
        if not estimated:
            found[0] += 1
        elif characters_per_token is None:
            raise TraceError(
                f"{where}: holds text and no lengths, and tokens depend on the model's tokenizer; "
                "add prompt_tokens and completion_tokens to each entry, or declare "
                "characters_per_token (about 4 in English) for an estimate"
            )
        else:
            found[1] += 1
        sizes[0].append(_tokens(question, characters))
        sizes[1].append(_tokens(answer, characters))
    file.faults.conclude(file.label)
    if not sizes[0]:
        raise TraceError(f"{file.label}: no entry has a question and an answer")
    table = np.array(sizes, np.int64)
    if table.max() > MAX_TOKENS:
        raise TraceError(f"{file.label}: a length above {MAX_TOKENS:,} tokens")
    answered = table[1] > 0
    notes = list(_notes(found, characters_per_token, int((~answered).sum())))
    notes += [*file.notes, *file.faults.notes()]
    if not answered.any():
        raise TraceError(f"{file.label}: every answer is empty; nothing to serve")
    return LengthTable(np.maximum(table[0, answered], 1), table[1, answered], tuple(notes))


def _notes(found: list[int], ratio: float | None, failed: int) -> Iterator[str]:
    if found[1]:
        yield f"{found[1]} lengths are estimates: {ratio:g} characters a token, as declared"
    if found[2]:
        yield f"{found[2]} entries with fewer than two turns left out, as vLLM does"
    if failed:
        yield f"{failed} failed requests (0 output tokens) left out"


def _recorded(entry: dict[str, Any], where: str) -> tuple[int, int] | None:
    usage = entry.get("usage")
    counts: dict[str, Any] = usage if isinstance(usage, dict) else entry
    if counts.keys().isdisjoint(INPUT):
        return None
    found: list[int] = []
    for keys in (INPUT, OUTPUT):
        key = next((k for k in keys if counts.get(k) is not None), None)
        if key is None:
            return None
        value = counts[key]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_TOKENS:
            raise TraceError(f"{where}: {key} is {value!r:.40}; expected a number of tokens")
        found.append(value)
    return found[0], found[1]


def _texts(
    entry: dict[str, Any], where: str, output_tokens: int | None
) -> tuple[str | int, str | int] | None:
    """Return question and answer, as texts or as recorded token counts; None if it is no pair."""
    turns = entry.get("conversations", entry.get("conversation"))
    if isinstance(turns, list):
        if len(turns) < 2:
            return None
        first, second = turns[0], turns[1]
        question = first.get("value") if isinstance(first, dict) else None
        reply = second.get("value") if isinstance(second, dict) else None
        if not (isinstance(question, str) and isinstance(reply, str)):
            raise TraceError(f"{where}: conversations[0].value and [1].value must be texts")
        return question, reply
    prompt = entry.get("prompt")
    if not isinstance(prompt, str):
        raise TraceError(
            f"{where}: neither conversations nor prompt; found {', '.join(entry)[:80]}"
        )
    answer = next((entry[key] for key in OUTPUT if entry.get(key) is not None), output_tokens)
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer <= MAX_TOKENS:
        raise TraceError(
            f"{where}: output_tokens is {answer!r:.40}; expected a number of tokens, in each line "
            "or for all by osl"
        )
    return prompt, answer


def _tokens(value: str | int, characters_per_token: float) -> int:
    return round(len(value) / characters_per_token) if isinstance(value, str) else value

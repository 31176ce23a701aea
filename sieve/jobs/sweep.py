"""One entry of a jobs file that asks a question several times: `sweep` lists values of spec keys.

Every combination becomes a job, named after the entry and the values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any, Final

KEY: Final = "sweep"


def fault_of(entry: dict[str, Any]) -> str | None:
    """Return what is wrong with the sweep of an entry, None if nothing."""
    sweep = entry.get(KEY)
    if not isinstance(entry.get("name"), str):
        return "an entry with a sweep needs a name, from which its jobs get theirs"
    if not isinstance(sweep, dict) or not sweep:
        return "expected spec keys with lists of values, such as {model: [A, B]}"
    for key, values in sweep.items():
        if not isinstance(values, list) or not values:
            return f"{key}: expected a list of at least one value"
        if any(values.count(value) > 1 for value in values):
            return f"{key}: a value is there twice"
        if key in entry or key in _set_of(entry):
            return f"{key}: is given beside the sweep too; give it in one place"
    return None


def expanded(entry: Any) -> Iterator[Any]:
    """Yield the jobs that an entry stands for; itself without a sweep, or with a faulty one."""
    if not isinstance(entry, dict) or KEY not in entry or fault_of(entry) is not None:
        yield entry
        return
    sweep = entry[KEY]
    rest = {key: value for key, value in entry.items() if key != KEY}
    width = {key: len(values) for key, values in sweep.items()}
    for places in product(*(range(count) for count in width.values())):
        chosen = {key: sweep[key][i] for key, i in zip(sweep, places, strict=True)}
        labels = [
            _label(sweep[key], i) for key, i in zip(sweep, places, strict=True) if width[key] > 1
        ]
        name = "-".join([entry["name"], *labels])
        yield rest | {"name": name, "set": _set_of(entry) | chosen}


def _set_of(entry: dict[str, Any]) -> dict[str, Any]:
    found = entry.get("set")
    return found if isinstance(found, dict) else {}


def _label(values: list[Any], i: int) -> str:
    """Return a short text for a value; its number where texts would be equal, long or nothing."""
    labels = [_text(value) for value in values]
    usable = len(set(labels)) == len(labels) and all(0 < len(label) <= 40 for label in labels)
    return labels[i] if usable else str(i + 1)


def _text(value: Any) -> str:
    if isinstance(value, dict | list) or value is None:
        return ""
    last = str(value).rsplit("/", 1)[-1].lower()
    return re.sub(r"[^a-z0-9.]+", "-", last).strip("-.")

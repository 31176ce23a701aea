"""Reading the named inputs of a formula: every fault is an `InvalidInput` that names the input.

`formula` turns a rule over checked `Fields` into a function from a JSON object to a JSON object:

```python
@formula("isl", "osl")
def prefill_share(given: Fields) -> Outputs: ...

prefill_share({"isl": 8000, "osl": 300})
```
"""

from __future__ import annotations

import difflib
import functools
import math
import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from sieve.errors import InvalidInput

Outputs = dict[str, Any]
Formula = Callable[[Mapping[str, Any]], Outputs]

MAX_WHOLE: Final = 2**53
"""Largest count: beyond it a double no longer tells neighbours apart."""


class Fields:
    """The inputs of one formula or of one row of a list, read by name.

    An optional input that is null counts as not given.
    """

    def __init__(
        self,
        given: object,
        needed: tuple[str, ...],
        defaults: Mapping[str, Any],
        *,
        path: str = "",
        extra: bool = False,
    ) -> None:
        """Hold the names against what is known.

        Args:
            given: the JSON object.
            needed: names that must be there.
            defaults: further names and what they are when not given.
            path: where the object stands, for messages.
            extra: keep quiet about other names.

        Raises:
            InvalidInput: not an object, or a name missing or unknown.
        """
        self._path = path
        if not isinstance(given, Mapping):
            raise InvalidInput(f"{path or 'inputs'}: found {_show(given)}, expected an object")
        known = [*needed, *defaults]
        for name in given:
            if name not in known and not extra:
                near = difflib.get_close_matches(str(name), known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(known)}"
                raise InvalidInput(f"{self.where(str(name))}: unknown input; {hint}")
        missing = [self.where(name) for name in needed if name not in given]
        if missing:
            raise InvalidInput(f"missing input: {', '.join(missing)}")
        self._values = {
            **given,
            **{name: value for name, value in defaults.items() if given.get(name) is None},
        }

    def where(self, name: str) -> str:
        """Return the path of an input, as in `requests[3].prompt`."""
        return f"{self._path}.{name}" if self._path else name

    def names(self) -> list[str]:
        """Return every input name, in the order given."""
        return [str(name) for name in self._values]

    def has(self, name: str) -> bool:
        """Tell whether an input is given or has a default other than null."""
        return self._values.get(name) is not None

    def raw(self, name: str) -> Any:
        """Return an input as it stands."""
        return self._values[name]

    def number(
        self,
        name: str,
        *,
        above: float = -math.inf,
        low: float = -math.inf,
        high: float = math.inf,
    ) -> float:
        """Return a finite number above `above` and within [`low`, `high`]."""
        return number(self._values[name], self.where(name), above=above, low=low, high=high)

    def whole(self, name: str, *, low: int = 1) -> int:
        """Return a whole number of at least `low`."""
        return whole(self._values[name], self.where(name), low=low)

    def flag(self, name: str) -> bool:
        """Return true or false."""
        value = self._values[name]
        if not isinstance(value, bool):
            raise InvalidInput(f"{self.where(name)}: found {_show(value)}, expected true or false")
        return value

    def text(self, name: str, allowed: tuple[str, ...] = ()) -> str:
        """Return a text, one of `allowed` if any are given."""
        value = self._values[name]
        if not isinstance(value, str) or (allowed and value not in allowed):
            wanted = " or ".join(repr(item) for item in allowed) or "a text"
            raise InvalidInput(f"{self.where(name)}: found {_show(value)}, expected {wanted}")
        return value

    def identity(self, name: str) -> str | int:
        """Return an id: a text or a whole number."""
        return identity(self._values[name], self.where(name))

    def items(self, name: str, *, least: int = 0) -> list[tuple[str, Any]]:
        """Return (path, entry) of a list of at least `least` entries."""
        value = self._values[name]
        if not isinstance(value, list | tuple):
            raise InvalidInput(f"{self.where(name)}: found {_show(value)}, expected a list")
        if len(value) < least:
            raise InvalidInput(
                f"{self.where(name)}: has {len(value)} entries, expected at least {least}"
            )
        return [(f"{self.where(name)}[{i}]", entry) for i, entry in enumerate(value)]

    def numbers(
        self, name: str, *, above: float = -math.inf, low: float = -math.inf, least: int = 1
    ) -> list[float]:
        """Return a list of at least `least` finite numbers within limits."""
        return [
            number(entry, path, above=above, low=low)
            for path, entry in self.items(name, least=least)
        ]

    def wholes(self, name: str, *, low: int = 1, least: int = 1) -> list[int]:
        """Return a list of at least `least` whole numbers of at least `low`."""
        return [whole(entry, path, low=low) for path, entry in self.items(name, least=least)]

    def tuples(
        self, name: str, size: int, *, least: int = 0
    ) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """Yield (path, entry) of a list whose entries are lists of `size`."""
        for path, entry in self.items(name, least=least):
            if not isinstance(entry, list | tuple) or len(entry) != size:
                raise InvalidInput(f"{path}: found {_show(entry)}, expected a list of {size}")
            yield path, tuple(entry)

    def record(self, name: str, /, *needed: str, extra: bool = False, **defaults: Any) -> Fields:
        """Return an object that is one of the inputs."""
        return Fields(
            self._values[name], needed, defaults, path=self.where(name), extra=extra
        )  # fmt: skip

    def records(
        self, name: str, /, *needed: str, extra: bool = False, least: int = 0, **defaults: Any
    ) -> list[Fields]:
        """Return a list of at least `least` objects."""
        return [
            Fields(entry, needed, defaults, path=path, extra=extra)
            for path, entry in self.items(name, least=least)
        ]


def formula(*needed: str, **defaults: Any) -> Callable[[Callable[[Fields], Outputs]], Formula]:
    """Make a formula of JSON objects out of a rule over checked fields.

    Args:
        needed: names of the inputs that must be given.
        defaults: names of the optional inputs and their defaults.
    """

    def wrap(rule: Callable[[Fields], Outputs]) -> Formula:
        @functools.wraps(rule)
        def call(inputs: Mapping[str, Any]) -> Outputs:
            fields = Fields(inputs, needed, defaults)
            try:
                # Beyond double precision NumPy would warn; the check below refuses instead.
                with np.errstate(all="ignore"):
                    outputs = rule(fields)
            except OverflowError:
                outputs = {"": math.inf}
            for value in outputs.values():
                entries = value if isinstance(value, list) else [value]
                if any(isinstance(x, float) and not math.isfinite(x) for x in entries):
                    raise InvalidInput(
                        "the inputs are too large or too small for a result; check their units"
                    )
            return outputs

        return call

    return wrap


def at_least(a: float, b: float) -> bool:
    """Tell whether a >= b up to rounding: 1e-12 relative (1.3)."""
    return a >= b - 1e-12 * abs(b)


def identity(value: object, path: str) -> str | int:
    """Return an id, a text or a whole number."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidInput(f"{path}: found {_show(value)}, expected a text or a whole number")
    return value


def number(
    value: object,
    path: str,
    *,
    above: float = -math.inf,
    low: float = -math.inf,
    high: float = math.inf,
) -> float:
    """Return a finite number above `above` and within [`low`, `high`]."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{path}: found {_show(value)}, expected a number")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise InvalidInput(f"{path}: found {_show(value)}, expected a finite number")
    if found <= above or not low <= found <= high:
        limits = [
            text
            for text, limit in (
                (f"above {above:g}", above),
                (f"at least {low:g}", low),
                (f"at most {high:g}", high),
            )
            if math.isfinite(limit)
        ]
        raise InvalidInput(f"{path}: found {_show(value)}, expected {' and '.join(limits)}")
    return found


def whole(value: object, path: str, *, low: int = 1) -> int:
    """Return a whole number of at least `low`, at most 2**53."""
    found = number(value, path, low=low)
    if found != math.floor(found) or found > MAX_WHOLE:
        raise InvalidInput(
            f"{path}: found {_show(value)}, expected a whole number of at most 2**53"
        )
    return int(found)


def _show(value: object) -> str:
    """Return a value for a message, cut to a line; huge numbers are not written out."""
    if isinstance(value, int) and abs(value) > MAX_WHOLE:
        return "a whole number beyond 2**53"
    text = reprlib.repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

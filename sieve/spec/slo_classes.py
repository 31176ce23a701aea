"""Classes of requests with limits of their own: by length or priority.

`short: {where: input_tokens<512, ttft_p99: 2 s}`, or as a text
`short(input_tokens<512): ttft:p99<=2s`. Conditions are joined by commas and hold together.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sieve.arrays import BoolArray, IntArray, Requests
from sieve.errors import Fault, InvalidInput

NAME: Final = re.compile(r"^[a-z][a-z0-9]{0,30}$")
_SIGNS: Final[dict[str, Callable[[IntArray, int], BoolArray]]] = {
    "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip
_FIELDS: Final = ("input_tokens", "output_tokens", "total_tokens", "priority")
_CONDITION: Final = re.compile(r"^\s*([a-z_]+)\s*(<=|>=|<|>)\s*(-?\d{1,10})\s*$")
_TEXT: Final = re.compile(r"^\s*([^\s():]+)\s*\(([^()]*)\)\s*:\s*(.+)$", re.DOTALL)
_RESERVED: Final = ("attainment", "goodput")


@dataclass(frozen=True)
class RequestClass:
    """A class of requests.

    Attributes:
        name: what it is called.
        conditions: (field, sign, number) that hold together; a field is `input_tokens`,
            `output_tokens`, `total_tokens` or `priority` (smaller is served first).
    """

    name: str
    conditions: tuple[tuple[str, str, int], ...]

    @property
    def where(self) -> str:
        """The conditions as a user would write them."""
        return ",".join(f"{field}{sign}{number}" for field, sign, number in self.conditions)

    @property
    def text(self) -> str:
        """The class as a user would write it in front of a limit."""
        return f"{self.name}({self.where})"

    def members(self, requests: Requests) -> BoolArray:
        """Return which requests are of the class, (n,).

        Raises:
            InvalidInput: a condition on priorities, which the traffic lacks.
        """
        mask = np.ones(len(requests), np.bool_)
        for field, sign, number in self.conditions:
            mask &= _SIGNS[sign](values_of(requests, field), number)
        return mask


def values_of(requests: Requests, field: str) -> IntArray:
    """Return what a condition compares, (n,).

    Raises:
        InvalidInput: the traffic has no priorities.
    """
    if field == "priority":
        if requests.priority is None:
            raise InvalidInput(
                "the traffic has no priorities (key `priority` of a trace in JSON lines); "
                "tell requests apart by input_tokens, output_tokens or total_tokens"
            )
        return requests.priority
    if field == "total_tokens":
        return np.asarray(requests.input_tokens + requests.output_tokens, np.int64)
    return np.asarray(getattr(requests, field), np.int64)


def split_class(text: str) -> tuple[str, str, str] | None:
    """Return name, conditions and limit of `short(input_tokens<512): ttft:p99<=2s`, or None."""
    match = _TEXT.match(text)
    if match is None or match[1] in _RESERVED:
        return None
    return match[1], match[2], match[3]


def parse_class(name: Any, where: Any, path: str, faults: list[Fault]) -> RequestClass | None:
    """Return the class with this name and these conditions, or None with the faults noted."""
    before = len(faults)
    if not NAME.match(str(name)) or name in _RESERVED:
        wanted = "lower-case letters and digits, a letter first, such as short"
        faults.append(Fault(path, f"found the class name {name!r}; expected {wanted}"))
    if not isinstance(where, str):
        wanted = "a text such as input_tokens<512"
        faults.append(Fault(f"{path}.where", f"found {where!r}, expected {wanted}"))
        return None
    found = []
    for part in where.split(","):
        match = _CONDITION.match(part)
        if match is None or match[1] not in _FIELDS:
            allowed = f"{', '.join(_FIELDS)} with <, <=, > or >= and a whole number"
            faults.append(
                Fault(f"{path}.where", f"cannot read {part.strip()!r}; conditions take {allowed}")
            )
        else:
            found.append((match[1], match[2], int(match[3])))
    return RequestClass(str(name), tuple(found)) if len(faults) == before else None


def class_faults(classes: tuple[RequestClass, ...], requests: Requests) -> list[Fault]:
    """Return a fault for every class that the traffic cannot show: without requests, or unknown."""
    faults = []
    for group in classes:
        try:
            members = group.members(requests)
        except InvalidInput as error:
            faults.append(Fault(f"slo.classes.{group.name}", str(error)))
            continue
        if not members.any():
            sizes = (
                f"prompts have {int(requests.input_tokens.min())} to "
                f"{int(requests.input_tokens.max())} tokens, answers "
                f"{int(requests.output_tokens.min())} to {int(requests.output_tokens.max())}"
            )
            faults.append(
                Fault(
                    f"slo.classes.{group.name}",
                    f"no request of the traffic is {group.where}, so its limits say nothing; "
                    f"{sizes}: change the condition or leave the class out",
                )
            )
    return faults

"""The formula registry: every sizing formula by name, JSON in and JSON out.

`evaluate` computes one formula, `evaluate_cases` the cases of a file, `read_json` reads what people
hand in. What each function takes and returns is listed in `docs/formulas.md`.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from sieve.errors import InvalidInput
from sieve.formulas.baselines import BASELINES
from sieve.formulas.bounds import BOUNDS
from sieve.formulas.sched import SCHED
from sieve.formulas.sizing_cases import SIZING
from sieve.formulas.slim import SLIM

FUNCTIONS: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    **SLIM,
    **BASELINES,
    **BOUNDS,
    **SIZING,
    **SCHED,
}
"""Every formula by the name that `evaluate` takes."""

MAX_INPUT_BYTES: Final = 10_000_000


def evaluate(function: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs of a formula; an infinite value is None.

    Args:
        function: a name of `FUNCTIONS`, as in `sizing.kv_pages`.
        inputs: by name, as JSON data.

    Raises:
        InvalidInput: an unknown function, or inputs that the formula refuses.
    """
    if function not in FUNCTIONS:
        raise InvalidInput(unknown_function(function))
    if not isinstance(inputs, Mapping):
        raise InvalidInput(f"inputs: found {type(inputs).__name__}; expected an object with keys")
    outputs: dict[str, Any] = _plain(FUNCTIONS[function](inputs), function)
    return outputs


def evaluate_cases(path: str | Path) -> list[dict[str, Any]]:
    """Return `{"id", "output"}` for each case of a file, in order.

    The file is JSON: `{"cases": [{"id", "function", "inputs"}, ...]}`; other keys are ignored. The
    output of a refused case is `{"error": "invalid_input", "message": ...}`, that of a function
    that does not exist `{"error": "unknown_function", "message": ...}`.

    Raises:
        InvalidInput: the file cannot be read as cases.
    """
    with _opened(Path(path)) as stream:
        document = read_json(stream, str(path))
    cases = document.get("cases") if isinstance(document, dict) else None
    if not isinstance(cases, list):
        raise InvalidInput(f"{path}: expected an object with a list `cases`")
    results = []
    for index, case in enumerate(cases):
        where = f"{path}: cases[{index}]"
        if not isinstance(case, dict):
            raise InvalidInput(f"{where}: expected an object with id, function and inputs")
        for name in ("id", "function", "inputs"):
            if name not in case:
                raise InvalidInput(f"{where}: has no `{name}`")
        if not isinstance(case["function"], str):
            raise InvalidInput(f"{where}.function: expected a text")
        results.append({"id": case["id"], "output": answer(case["function"], case["inputs"])})
    return results


def answer(function: str, inputs: Any) -> dict[str, Any]:
    """Return the outputs of a formula, or `{"error", "message"}` where `evaluate` would raise."""
    if function not in FUNCTIONS:
        return {"error": "unknown_function", "message": unknown_function(function)}
    try:
        return evaluate(function, inputs)
    except InvalidInput as error:
        return refusal(error)


def refusal(error: InvalidInput) -> dict[str, Any]:
    """Return invalid input as an output."""
    return {"error": "invalid_input", "message": str(error)}


def read_input(path: str | Path) -> Any:
    """Return the JSON document in a file.

    Raises:
        InvalidInput: no such file, or as `read_json`.
    """
    with _opened(Path(path)) as stream:
        return read_json(stream, str(path))


def read_json(stream: BinaryIO, source: str) -> Any:
    """Return the JSON document of a stream, strictly.

    Raises:
        InvalidInput: too large, not UTF-8, not JSON, a key twice, a number that is not finite.
    """
    try:
        data = stream.read(MAX_INPUT_BYTES + 1)
    except OSError as error:
        raise InvalidInput(f"{source}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_INPUT_BYTES:
        raise InvalidInput(f"{source}: is larger than {MAX_INPUT_BYTES:,} bytes")
    try:
        text = data.decode("utf-8-sig")
        document = json.loads(
            text, object_pairs_hook=_object, parse_float=_finite, parse_constant=_finite
        )
        if "\\u" in text:
            # Half of a surrogate pair is no character, so no answer could repeat it.
            json.dumps(document, ensure_ascii=False).encode()
    except InvalidInput as error:
        raise InvalidInput(f"{source}: {error}") from None
    except RecursionError:
        raise InvalidInput(f"{source}: is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise InvalidInput(
            f"{source}: line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
        ) from None
    except UnicodeError:
        raise InvalidInput(f"{source}: is not UTF-8 text") from None
    except ValueError:
        raise InvalidInput(f"{source}: holds a number of too many digits") from None
    return document


def unknown_function(function: str) -> str:
    """Return a message with the names nearest to one that is not a function."""
    same = [name for name in FUNCTIONS if name.partition(".")[2] == function]
    near = same or difflib.get_close_matches(function, FUNCTIONS, n=3, cutoff=0.5)
    modules = ", ".join(dict.fromkeys(name.partition(".")[0] for name in FUNCTIONS))
    hint = f"did you mean {' or '.join(near)}?" if near else f"modules are: {modules}"
    shown = function if len(function) <= 60 else f"{function[:57]}..."
    return f"unknown function {shown!r}; {hint}"


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InvalidInput(f"{path}: cannot be read: {reason}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise InvalidInput(f"key {key[:60]!r} stands twice in one object")
        found[key] = value
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidInput(f"found {text[:60]}, expected a finite number")
    return value


def _plain(value: Any, function: str) -> Any:
    """Return JSON data: NumPy as plain numbers, infinities as None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item, function) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, function) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist(), function)
    if isinstance(value, float) and math.isnan(value):
        raise InvalidInput(f"{function}: the inputs leave the range that the formula covers")
    return None if isinstance(value, float) and math.isinf(value) else value

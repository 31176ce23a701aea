"""Every golden case through the formula registry, compared as the file's `comparison` says.

Only keys under `expected` count. Floats agree within max(abs, rel * |expected|), a tolerance given
for a key holds for that key, a bare number in it is relative; everything else is equal.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sieve.errors import InvalidInput
from sieve.evaluate import FUNCTIONS, evaluate, evaluate_cases

FILE = Path(__file__).with_name("seed_values.json")
CASES = json.loads(FILE.read_text(encoding="utf-8"))["cases"]


def faults(found: Any, expected: Any, rel: float, absolute: float, path: str) -> list[str]:
    """Return where `found` departs from `expected`."""
    if isinstance(expected, float) and isinstance(found, int | float) and type(found) is not bool:
        near = abs(found - expected) <= max(absolute, rel * abs(expected))
        return [] if near else [f"{path}: {found!r}, expected {expected!r}"]
    if isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        pairs = enumerate(zip(found, expected, strict=True))
        return [x for i, (f, e) in pairs for x in faults(f, e, rel, absolute, f"{path}[{i}]")]
    if isinstance(expected, dict) and isinstance(found, dict) and found.keys() == expected.keys():
        pairs = ((key, found[key], expected[key]) for key in expected)
        return [x for k, f, e in pairs for x in faults(f, e, rel, absolute, f"{path}.{k}")]
    same = found == expected and isinstance(found, bool) == isinstance(expected, bool)
    return [] if same else [f"{path}: {found!r}, expected {expected!r}"]


def compare(output: dict[str, Any], case: dict[str, Any]) -> list[str]:
    tolerance, wrong = case["tolerance"], []
    for key, expected in case["expected"].items():
        limit = tolerance.get(key, tolerance)
        limit = limit if isinstance(limit, dict) else {"rel": limit}
        rel, absolute = limit.get("rel", 0.0), limit.get("abs", 0.0)
        wrong += faults(output.get(key), expected, rel, absolute, key)
    return wrong


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_golden_case(case: dict[str, Any]) -> None:
    if case["expected"] == {"error": "invalid_input"}:
        with pytest.raises(InvalidInput, match=r"\w"):
            evaluate(case["function"], case["inputs"])
        return
    output = evaluate(case["function"], case["inputs"])
    assert compare(output, case) == []
    assert json.loads(json.dumps(output, allow_nan=False)) == output


def test_the_file_as_a_whole() -> None:
    results = evaluate_cases(FILE)
    assert [result["id"] for result in results] == [case["id"] for case in CASES]
    by_id = {result["id"]: result["output"] for result in results}
    refused = {case["id"] for case in CASES if "error" in case["expected"]}
    assert {name for name, output in by_id.items() if "error" in output} == refused


def test_every_function_has_a_case() -> None:
    assert {case["function"] for case in CASES} == set(FUNCTIONS)


@pytest.mark.parametrize(
    ("found", "expected", "wrong"),
    [
        (1.0 + 5e-10, 1.0, False), (1.0 + 5e-9, 1.0, True), (5e-13, 0.0, False), (2, 2.0, False),
        (True, 1.0, True), (2.0000001, 2, True), (None, 0.0, True), (True, 1, True),
        ([1.0, 2.0], [1.0], True), ([[1, "a"]], [[1, "a"]], False), ([[1, "b"]], [[1, "a"]], True),
        ({"a": 1.0}, {"a": 1.0, "b": 2}, True), ({"a": 1.5}, {"a": 1.0}, True),
    ],
)  # fmt: skip
def test_the_comparison_itself(found: Any, expected: Any, wrong: bool) -> None:
    case = {"expected": {"x": expected}, "tolerance": {"rel": 1e-9, "abs": 1e-12}}
    assert bool(compare({"x": found}, case)) == wrong


def test_a_tolerance_of_one_key() -> None:
    case = {
        "expected": {"a": 100.0, "b": 100.0},
        "tolerance": {"a": 0.01, "b": {"abs": 1e-3}},
    }
    assert compare({"a": 100.9, "b": 100.0005}, case) == []
    assert len(compare({"a": 101.1, "b": 100.9}, case)) == 2
    assert len(compare({}, case)) == 2

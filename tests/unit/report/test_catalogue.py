from __future__ import annotations

from typing import Any

import pytest

from sieve.report.catalogue import fact, print_facts


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, "yes"),
        (None, "not set"),
        (1.979e15, "1,979,000,000,000,000"),
        (0.92, "0.92"),
        (["dense", "dense", "moe"], "2 x dense; moe"),
        ({"a": 1, "b": [{"c": 2, "d": ["x", "y"]}]}, "a 1, b (c 2, d (x; y))"),
    ],
)
def test_a_fact_in_words(value: Any, words: str) -> None:
    assert fact(value) == words


def test_facts_fit_the_terminal_and_unset_ones_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    print_facts({"name": "x", "moe": None, "notes": ["word " * 40], "bytes": {"a": 1, "b": None}})
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[-2:] == ["bytes  a 1", "       b not set"]
    assert not any(line.startswith("moe") for line in lines)

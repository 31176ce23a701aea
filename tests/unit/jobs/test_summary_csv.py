"""The table of a batch in a spreadsheet: a text of a stranger is never a formula."""

from __future__ import annotations

import csv
import io

import pytest

from sieve.jobs.summary import COLUMNS, to_csv

FORMULAS = (
    '=cmd|"/c calc"!A1', "=HYPERLINK(\"http://x\")", "+1+1", "-2+3", "@SUM(A1)", " =1+1", "\t=1+1",
    "\r\n=1+1", "\n@x",
)  # fmt: skip


def cells(value: object) -> list[str]:
    """Return the second line of the table, every column holding `value`."""
    head, row = csv.reader(io.StringIO(to_csv([dict.fromkeys(COLUMNS, value)])))
    assert head == list(COLUMNS)
    return row


@pytest.mark.parametrize("text", FORMULAS)
def test_what_looks_like_a_formula_gets_a_quote(text: str) -> None:
    for cell in cells(text):
        assert not cell.lstrip().startswith(("=", "+", "-", "@")), cell
        assert not cell.startswith(("\t", "\r", "\n"))


def test_numbers_and_plain_texts_stay_as_they_are() -> None:
    assert set(cells(-1.5)) == {"-1.5"}
    assert set(cells("a=b, c")) == {"a=b, c"}
    assert set(cells(None)) == {""}
    assert set(cells('two\nlines "x"')) == {'two; lines "x"'}

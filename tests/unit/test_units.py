"""Quantities with units, and the guarded floor."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sieve.errors import InvalidInput
from sieve.formulas.sizing import gfloor_array
from sieve.units import gfloor, parse_quantity


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        ("2 s", "s", 2.0),
        ("500ms", "s", 0.5),
        ("1.5 min", "s", 90.0),
        ("250 us", "s", 250e-6),
        ("250 µs", "s", 250e-6),
        ("2 h", "s", 7200.0),
        (3, "s", 3.0),
        ("3", "s", 3.0),
        ("1e-3", "s", 0.001),
        ("80 GB", "bytes", 80e9),
        ("80 GiB", "bytes", 85_899_345_920.0),  # 80 x 1024^3
        ("1 MiB", "bytes", 1_048_576.0),
        ("4/s", "per_s", 4.0),
        ("120 /min", "per_s", 2.0),
        ("95%", "frac", 0.95),
        (" 0.5 ", "frac", 0.5),
        ("-1 s", "s", -1.0),
        (".5 s", "s", 0.5),
    ],
)
def test_quantities_are_read_in_the_base_unit(value: object, unit: str, expected: float) -> None:
    assert parse_quantity(value, unit) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("value", "unit", "complaint"),
    [
        ("2 kg", "s", "'kg'"),
        ("2/s", "s", "'/s'"),
        ("2 s", "per_s", "'s'"),
        ("2 gb", "bytes", "'gb'"),
        ("2 S", "s", "'S'"),
        ("fast", "s", "expected a number"),
        ("", "s", "expected a number"),
        ("1 2 s", "s", "expected a number"),
        ("nan", "s", "expected a number"),
        (".nan", "s", "expected a number"),
        ("1e999 s", "s", "finite"),
        (float("nan"), "s", "finite"),
        (float("inf"), "s", "finite"),
        (True, "s", "expected a number"),
        (None, "s", "expected a number"),
        ([2], "s", "expected a number"),
    ],
)
def test_what_is_no_quantity_is_refused(value: object, unit: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        parse_quantity(value, unit)


@pytest.mark.parametrize("value", ["1e308 h", 10**400], ids=["text", "number"])
def test_a_quantity_beyond_double_precision_is_refused(value: object) -> None:
    with pytest.raises(InvalidInput):
        parse_quantity(value, "s")


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (102.5 / 1.025, 100),  # 99.999...9 in binary
        (104 / 1.04, 100),
        (99.999_999_95, 100),  # within 1e-9 relative of 100
        (99.999_999, 99),
        (2.999, 2),
        (-0.5, -1),
        (0.0, 0),
        (1e-10, 0),
        (0.999_999_999_5, 1),
    ],
)
def test_the_guarded_floor(x: float, expected: int) -> None:
    assert gfloor(x) == expected
    assert gfloor_array(np.array([x])).tolist() == [expected]


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 10**6), st.integers(1, 10**4))
def test_the_guarded_floor_of_a_quotient_is_exact(whole: int, hundredths: int) -> None:
    divisor = hundredths / 100
    assert gfloor(whole * divisor / divisor) == whole
    exact = Fraction(whole, hundredths)
    assert gfloor(whole / hundredths) == math.floor(exact)

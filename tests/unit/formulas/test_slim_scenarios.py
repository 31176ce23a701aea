"""Knee and splits against rules written out again."""

from __future__ import annotations

import itertools

import pytest

from sieve.errors import InvalidInput
from sieve.formulas.slim import SLIM

OPT = ("OPT-125M", "OPT-350M", "OPT-1.3B", "OPT-2.7B", "OPT-6.7B")
GRID = [
    {"model": m, "IL": i, "OL": o, "B": b}
    for m, i, o, b in itertools.product(OPT, (128, 512, 1024), (32, 128, 256, 384, 512), (1, 8))
]


def split(scenario, rows=GRID):
    return SLIM["slim.split"]({"scenario": scenario, "observations": rows})


def where(test):
    return [i for i, row in enumerate(GRID) if test(row["model"], row["IL"], row["OL"])]


def test_mape():
    got = SLIM["slim.mape"]({"predicted": [90, 220], "measured": [100, 200]})
    assert got["mape_percent"] == pytest.approx((10 + 10) / 2)


@pytest.mark.parametrize(
    ("predicted", "measured"), [([1], [0]), ([1], [-1]), ([1, 2], [1]), ([], []), ([None], [1])]
)
def test_unusable_series_have_no_error(predicted, measured):
    with pytest.raises(InvalidInput):
        SLIM["slim.mape"]({"predicted": predicted, "measured": measured})


def test_knee_is_farthest_above_the_chord():
    batches = [1, 3, 9, 27, 81]
    rates = [b * 100 / (b + 12) for b in batches]
    heights = [
        (t - rates[0]) / (rates[-1] - rates[0]) - (b - 1) / 80
        for b, t in zip(batches, rates, strict=True)
    ]
    got = SLIM["slim.knee"]({"B": batches, "throughput": rates})
    assert got["knee_B"] == batches[heights.index(max(heights))]


def test_a_straight_line_bends_at_its_first_point():
    rates = [0.1 * b for b in range(1, 12)]
    assert SLIM["slim.knee"]({"B": list(range(1, 12)), "throughput": rates})["knee_B"] == 1


@pytest.mark.parametrize(
    ("batches", "rates"),
    [([1, 2], [5, 5]), ([2, 1], [1, 2]), ([1, 1], [1, 2]), ([1], [1]), ([1, 2], [1, 2, 3])],
)
def test_curves_without_a_knee_are_refused(batches, rates):
    with pytest.raises(InvalidInput):
        SLIM["slim.knee"]({"B": batches, "throughput": rates})


def test_transfer_scenarios():
    small = set(OPT[:4])
    model_train = where(lambda m, i, o: m in small and o == 384)
    length_train = where(lambda m, i, o: m in small and o in (32, 128, 256))
    assert split("model_transfer") == {
        "train": model_train,
        "validate": where(lambda m, i, o: m == "OPT-6.7B" and o == 384),
    }
    assert split("output_length_transfer") == {
        "train": length_train,
        "validate": where(lambda m, i, o: m in small and o == 512),
    }
    assert split("input_length_transfer") == {
        "train": where(lambda m, i, o: (m, o) == ("OPT-1.3B", 256) and i in (128, 512)),
        "validate": where(lambda m, i, o: (m, o, i) == ("OPT-1.3B", 256, 1024)),
    }
    assert split("combined") == {
        "train": sorted(model_train + length_train),
        "validate": where(lambda m, i, o: m == "OPT-6.7B" and o == 512),
    }


def test_names_are_read_without_maker_and_case():
    rows = [{**row, "model": f"facebook/{row['model'].lower()}"} for row in GRID]
    assert split("combined", rows) == split("combined")


def curve(rates, model="m"):
    return [
        {"model": model, "IL": 8, "OL": 8, "B": 2**k, "throughput": t} for k, t in enumerate(rates)
    ]


def test_same_curve_takes_first_middle_and_knee():
    """Heights over the chord of B = 1..64: the knee is B = 16, the fifth of seven points."""
    rows = curve([10, 20, 40, 70, 100, 110, 115])
    series = {"B": [r["B"] for r in rows], "throughput": [r["throughput"] for r in rows]}
    assert SLIM["slim.knee"](series) == {"knee_B": 16}
    assert split("same_curve", rows) == {"train": [0, 2, 4], "validate": [1, 3, 5, 6]}


def test_same_curve_with_an_early_knee_takes_the_three_smallest():
    rows = curve([10, 90, 95, 99, 100])
    assert split("same_curve", rows) == {"train": [0, 1, 2], "validate": [3, 4]}


def test_same_curve_sorts_each_curve_by_batch():
    one, two = curve([10, 90, 95, 99]), curve([10, 90, 95, 99], "n")
    mixed = [row for pair in zip(reversed(one), two, strict=True) for row in pair]
    assert split("same_curve", mixed) == {"train": [1, 2, 3, 4, 5, 6], "validate": [0, 7]}


@pytest.mark.parametrize(
    ("scenario", "rows"),
    [
        ("same_curve", curve([1, 2, 3])),
        ("same_curve", []),
        ("same_curve", curve([1, 2, 3, 1])),
        ("model_transfer", GRID[:2]),
        ("other", GRID),
        (None, GRID),
        ("combined", [{"model": 3, "IL": 1, "OL": 1}]),
        ("combined", [7]),
    ],
)
def test_splits_without_two_sides_are_refused(scenario, rows):
    with pytest.raises(InvalidInput):
        split(scenario, rows)

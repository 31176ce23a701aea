"""The baselines on data made by their own formulas, and against a search written out here."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import nnls

from sieve.errors import InvalidInput
from sieve.formulas.baselines import imai_ood_lr, llmvisor_agg

GRID = list(itertools.product((1, 2, 4, 8, 16, 32), (64, 256, 1024), (32, 128)))


def aggregate(prefill, decode, batch, isl, osl):
    tokens, context = batch * isl, batch * (isl + (osl + 1) / 2)
    ttft = np.dot(prefill, [1, tokens, tokens * isl])
    return {"ttft": float(ttft), "itl": float(np.dot(decode, [1, batch, context]))}


def rows(cut_tokens=np.inf):
    """Rows of one law, and above `cut_tokens` prompt tokens of another."""
    out = []
    for batch, isl, osl in GRID:
        prefill = (0.01, 2e-5, 3e-9) if batch * isl <= cut_tokens else (0.05, 6e-5, 1e-8)
        made = aggregate(prefill, (0.008, 1e-5, 2e-8), batch, isl, osl)
        out.append({"B": batch, "IL": isl, "OL": osl, **made})
    return out


def test_one_piece_comes_back():
    test = {"B": 5, "IL": 300, "OL": 77}
    made = aggregate((0.01, 2e-5, 3e-9), (0.008, 1e-5, 2e-8), *test.values())
    got = llmvisor_agg({"train": rows(), "test": [test]})
    expected = made["ttft"] + 76 * made["itl"]
    assert got["e2e"][0] == pytest.approx(expected, rel=1e-6)
    assert got["throughput"][0] == pytest.approx(5 * 377 / expected, rel=1e-6)


@pytest.mark.parametrize(("batch", "prefill"), [(2, (0.01, 2e-5, 3e-9)), (30, (0.05, 6e-5, 1e-8))])
def test_two_pieces_come_back_on_their_side(batch, prefill):
    test = {"B": batch, "IL": 300, "OL": 50}
    made = aggregate(prefill, (0.008, 1e-5, 2e-8), *test.values())
    got = llmvisor_agg({"train": rows(cut_tokens=2048), "test": [test]})
    assert got["e2e"][0] == pytest.approx(made["ttft"] + 49 * made["itl"], rel=1e-6)


def test_a_cut_needs_four_rows_on_both_sides():
    """Seven rows stay one piece, whatever the bend; the eighth lets them part."""
    test = {"B": 1, "IL": 64, "OL": 1}
    train = [
        {"B": b, "IL": 64, "OL": 1, "ttft": 0.01 * b if b <= 4 else 0.05 * b, "itl": 0.01}
        for b in range(1, 9)
    ]

    def single(rows):
        tokens = np.array([row["B"] * 64.0 for row in rows])
        target = np.array([row["ttft"] for row in rows])
        design = np.column_stack((np.ones_like(tokens), tokens)) / target[:, None]
        weights = nnls(design, np.ones_like(target))[0]
        return weights @ [1, 64]

    seven = llmvisor_agg({"train": train[:7], "test": [test]})["e2e"][0]
    eight = llmvisor_agg({"train": train, "test": [test]})["e2e"][0]
    assert seven == pytest.approx(single(train[:7]), rel=1e-9)
    assert eight == pytest.approx(0.01, rel=1e-9)
    assert seven != pytest.approx(0.01, rel=1e-2)


ARCHITECTURES = ((768, 12, 12), (1024, 24, 16), (2048, 24, 32))


def shapes():
    return [
        {"B": b, "IL": i, "OL": o, "D": d, "L": n, "Hq": h}
        for b, i, o, (d, n, h) in itertools.product(
            (1, 8, 64), (128, 512), (32, 256), ARCHITECTURES
        )
    ]


def quadratic(row):
    b, i, o, d, n, h = (row[k] for k in ("B", "IL", "OL", "D", "L", "Hq"))
    return 0.5 + 0.01 * b + 1e-4 * b * o + 1e-5 * o * n + 1e-6 * i * d + 2e-3 * h


def test_regression_comes_back_within_its_family():
    train = [{**row, "e2e": quadratic(row)} for row in shapes()]
    test = [{"B": 16, "IL": 300, "OL": 100, "D": 1024, "L": 24, "Hq": 16}]
    got = imai_ood_lr({"train": train, "test": test})
    assert got["e2e"][0] == pytest.approx(quadratic(test[0]), rel=1e-6)
    assert got["throughput"][0] == pytest.approx(16 * 400 / quadratic(test[0]), rel=1e-6)


def test_constant_columns_are_dropped():
    train = [{**row, "e2e": quadratic(row)} for row in shapes() if row["D"] == 768]
    test = [{**train[0], "B": 30}]
    assert imai_ood_lr({"train": train, "test": test})["e2e"][0] == pytest.approx(
        quadratic(test[0]), rel=1e-6
    )


def test_a_single_row_predicts_itself():
    row = {"B": 1, "IL": 2, "OL": 3, "D": 4, "L": 5, "Hq": 6, "e2e": 7.0}
    assert imai_ood_lr({"train": [row], "test": [row]})["e2e"] == [pytest.approx(7.0)]


def test_a_prediction_below_zero_is_refused():
    train = [{**row, "e2e": 10.0 / row["B"]} for row in shapes()]
    with pytest.raises(InvalidInput, match="test\\[0\\]"):
        imai_ood_lr({"train": train, "test": [{**shapes()[0], "B": 4000}]})


@pytest.mark.parametrize("function", [llmvisor_agg, imai_ood_lr])
def test_unusable_sides_are_refused(function):
    full = {**shapes()[0], "e2e": 1.0, "ttft": 1.0, "itl": 1.0}
    for train, test in (([], [full]), ([full], []), ([{"B": 1}], [full]), ([full], [{"B": 0}])):
        with pytest.raises(InvalidInput):
            function({"train": train, "test": test})

"""The memory ledger against public start-up logs (`tests/data/start_ups.csv`, tagged by source).

GiB per GPU as the logs print them. Each figure is held on its own row; the summary to the figures
that `sieve verify memory --strict` asks for, tightened to what the ledger reaches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sieve.verify.memory import missed, verify_memory

START_UPS = Path(__file__).parents[1] / "data" / "start_ups.csv"
REPORT = verify_memory(START_UPS)
ROWS = {row["case_id"]: row for row in REPORT["rows"]}
# Weights that were not printed but worked out from published errors, good to 0.3 GiB.
DERIVED = {"M034", "M045", "M046", "M048", "M052"}
# 57.74 against 57.75 GiB if the checkpoint of that month stored each KV head twice; assumed, so not
# modelled.
OLD_CHECKPOINT = "M060"
# Round figures in the source.
ROUNDED = {"M070", "M071"}
# Ran out of memory outside the budget, after the cache was there; 2.5 % of the card is left here.
OUTSIDE = "M055"


def stated(figure: str) -> list[Any]:
    rows = [row for row in REPORT["rows"] if row[f"{figure}_measured"] is not None]
    return [pytest.param(row, id=row["case_id"]) for row in rows]


def test_every_row_is_judged() -> None:
    assert REPORT["summary"]["rows"] == 25
    known = verify_memory(START_UPS, eligible_only=True)
    assert known["summary"]["rows"] == 21
    assert len(REPORT["skipped"]) == 25
    # Every one of them lacks a fact; none is beyond the ledger.
    assert {entry["reason"].split(" ", 1)[1] for entry in REPORT["skipped"]} == {"is not stated"}


@pytest.mark.parametrize("row", stated("weights_gib"))
def test_weights(row: dict[str, Any]) -> None:
    tolerance = 0.01 if row["case_id"] in DERIVED else 0.0015
    tolerance = 0.02 if row["case_id"] == OLD_CHECKPOINT else tolerance
    assert row["weights_gib_predicted"] == pytest.approx(row["weights_gib_measured"], rel=tolerance)


@pytest.mark.parametrize("row", stated("activation_gib"))
def test_activations(row: dict[str, Any]) -> None:
    tolerance = 0.03 if row["eligible"] else 0.07  # worked out from published errors
    assert row["activation_gib_predicted"] == pytest.approx(
        row["activation_gib_measured"], abs=tolerance
    )


@pytest.mark.parametrize("row", stated("non_torch_gib"))
def test_non_torch(row: dict[str, Any]) -> None:
    assert row["non_torch_gib_predicted"] == pytest.approx(row["non_torch_gib_measured"], abs=0.12)


@pytest.mark.parametrize("row", stated("available_kv_gib"))
def test_what_is_left_for_the_cache(row: dict[str, Any]) -> None:
    tolerance = 1.6 if row["case_id"] in ROUNDED else 0.25
    measured = row["available_kv_gib_measured"]
    assert row["available_kv_gib_predicted"] == pytest.approx(measured, abs=tolerance)


@pytest.mark.parametrize("row", stated("kv_tokens"))
def test_tokens_of_cache(row: dict[str, Any]) -> None:
    tolerance = 0.12 if row["case_id"] in ROUNDED else 0.0005
    assert row["kv_tokens_predicted"] == pytest.approx(row["kv_tokens_measured"], rel=tolerance)


@pytest.mark.parametrize("row", stated("max_concurrency"))
def test_concurrency(row: dict[str, Any]) -> None:
    measured = row["max_concurrency_measured"]
    assert row["max_concurrency_predicted"] == pytest.approx(measured, rel=0.001)


def test_verdicts() -> None:
    wrong = {row["case_id"] for row in REPORT["rows"] if row["verdict"] != row["expected"]}
    assert wrong == {OUTSIDE}
    assert 0 < ROWS[OUTSIDE]["margin_mib"] < 0.03 * 79.19 * 1024


def test_summary() -> None:
    found = REPORT["summary"]
    assert found["weights_mape"] < 0.3
    assert found["activation_mae_gib"] < 0.02
    assert found["non_torch_mae_gib"] < 0.03
    assert found["kv_tokens_median_ape"] < 0.1
    assert [words.split()[0] for words in missed(REPORT)] == ["verdict_wrong"]

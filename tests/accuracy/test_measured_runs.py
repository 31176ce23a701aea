"""Measured runs of vLLM under the folder that SIEVE_DATA names, against the replay.

The whole comparison, with every model x GPU left out, is `reports/validation/measured.md`; here a
sixth of the runs keeps a change from going unnoticed.
"""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import pytest

from sieve.verify.measured import verify_measured

DATA = os.environ.get("SIEVE_DATA")
needs_data = pytest.mark.skipif(
    not DATA, reason="SIEVE_DATA is not set: it names the folder with the measured runs"
)
EVERY = 6
NAMES = ("unknown model", "nearest:")


def report_of(source: str, folder: Path) -> dict[str, Any]:
    path = Path(DATA or "") / "measured" / f"{source}.csv"
    with path.open(encoding="utf-8", newline="") as handle:
        rows = [row for row in csv.DictReader(handle) if row["eligible"] == "1"]
    chosen = folder / path.name
    with chosen.open("w", encoding="utf-8", newline="") as handle:
        out = csv.DictWriter(handle, fieldnames=list(rows[0]))
        out.writeheader()
        out.writerows(rows[::EVERY])
    return verify_measured(chosen, eligible_only=True)


@needs_data
def test_closed_loops_stay_as_near_as_they_were(tmp_path: Path) -> None:
    """The page says 4.6 % and 9.6 % for this source with the group left out; 40 % of slack."""
    report = report_of("aiconfigurator_silicon", tmp_path)
    assert report["skipped"] == []
    tpot, ttft = (report["summary"]["metrics"][name] for name in ("tpot", "ttft"))
    assert tpot["rows"] >= 60
    assert tpot["median_ape"] < 6.5
    assert ttft["median_ape"] < 13.5
    assert abs(tpot["bias"]) < 4
    assert tpot["coverage"] > 0.7


@needs_data
@pytest.mark.parametrize("source", ["gpustack_perflab", "dstack_405b", "inferencex_token_position"])
def test_no_eligible_row_is_skipped_for_its_name(source: str, tmp_path: Path) -> None:
    report = report_of(source, tmp_path)
    reasons = [skipped["reason"] for skipped in report["skipped"]]
    assert not [reason for reason in reasons if any(words in reason for words in NAMES)]
    assert report["summary"]["predicted"] + len(reasons) == report["summary"]["rows"]
    assert report["summary"]["predicted"] >= 4

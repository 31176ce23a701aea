"""Cells that Python's CSV reader refuses end in an error of ours, not in its own."""

from __future__ import annotations

import pytest

from sieve.calibration.observations import read_observations
from sieve.calibration.readers.detect import kind_of, read_results
from sieve.errors import ResultError, TraceError
from sieve.spec import TrafficSpec
from sieve.traces import load_traffic

WIDE = "9" * 200_000  # beyond the 131,072 characters that a field may have


@pytest.mark.parametrize("text", ["\r\x00", f"{WIDE}\n1\n", f'"a\rb",c\n1,{WIDE}\n'])
def test_results_that_are_no_csv(tmp_path, text):
    path = tmp_path / "r.csv"
    path.write_text(text, newline="")
    assert kind_of(path) == "log"
    with pytest.raises(ResultError, match=r"r\.csv"):
        read_results(path)
    with pytest.raises(ResultError, match=r"r\.csv"):
        read_observations([path])


def test_a_percentile_table_with_a_wide_cell(tmp_path):
    (tmp_path / "p.csv").write_text(f"metric,p50,p90\ninput_tokens,{WIDE},3\n")
    with pytest.raises(TraceError, match=r"p.csv: no CSV: field larger"):
        load_traffic(TrafficSpec(trace="p.csv"), seed=0, base_dir=tmp_path)


def test_a_torn_row_with_a_wide_quoted_cell(tmp_path):
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:01,1,2\n"
    (tmp_path / "t.csv").write_text(f'{text}a,"{WIDE}",1,2,3\n')
    with pytest.raises(TraceError, match=r"t.csv, line 3: no row of a CSV: field larger"):
        load_traffic(TrafficSpec(trace="t.csv"), seed=0, base_dir=tmp_path)
    got = load_traffic(TrafficSpec(trace="t.csv", on_error="skip"), seed=0, base_dir=tmp_path)
    assert got.line.tolist() == [2]

"""Rules of the audit that compare a table's parts: precisions, engines, versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from sieve.perf.audit_finding import Finding, with_origin, words
from sieve.perf.table_schema import OPERATIONS

DISAGREE: Final = 1.5
SLOWER: Final = 1.1
COPIED_SHARE: Final = 0.99
_MIN_COMMON: Final = 20


def slower_than_16_bit(rows: pl.DataFrame, op: str) -> Iterator[Finding]:
    """Find precisions that take longer than 16 bits on the same sizes."""
    column = {"gemm": "gemm_dtype", "moe": "moe_dtype"}.get(op)
    if column is None:
        return
    same = [c for c in OPERATIONS[op].columns if c != column]
    base = rows.filter(pl.col(column) == "bfloat16").group_by(same).agg(pl.col("latency_us").min())
    for name in rows[column].unique().sort().to_list():
        if name == "bfloat16":
            continue
        own = rows.filter(pl.col(column) == name).group_by(same).agg(pl.col("latency_us").min())
        both = own.join(base, on=same, suffix="_16")
        ratio = (both["latency_us"] / both["latency_us_16"]).to_numpy()
        if len(ratio) >= _MIN_COMMON and np.median(ratio) > SLOWER:
            detail = (
                f"median {np.median(ratio):.2f} times 16 bits on {len(ratio):,} equal sizes, 90th "
                f"percentile {np.quantile(ratio, 0.9):.2f}"
            )
            yield Finding("slower_than_16_bit", op, name, detail)


def sources_disagree(rows: pl.DataFrame, op: str) -> Iterator[Finding]:
    """Compare sources (engines, versions) on equal keys: far apart, or copies of each other."""
    kinds = [*OPERATIONS[op].precision, *OPERATIONS[op].stored]
    for comparison in compare_sources(rows, op, kinds):
        pair = f"{comparison.first} | {comparison.second}"
        where = f"{comparison.kind} {pair}".strip()
        if comparison.equal_share >= COPIED_SHARE:
            if comparison.second.startswith(comparison.first):
                continue  # a file and the same file as its package first shipped it
            detail = (
                f"{comparison.equal_share:.0%} of {comparison.rows:,} rows are equal to the last "
                "digit: one measurement under two versions, which confirms nothing"
            )
            yield Finding("copied", op, where, detail)
        elif not 1 / DISAGREE <= comparison.median <= DISAGREE:
            detail = (
                f"median ratio {comparison.median:.2f}, 90th percentile of the distance "
                f"{comparison.ninety:.2f} on {comparison.rows:,} equal keys"
            )
            yield Finding("sources_disagree", op, where, detail)


@dataclass(frozen=True)
class Comparison:
    """Two sources on the same keys.

    Attributes:
        kind: precision.
        first, second: sources.
        rows: keys in common.
        median: median of second over first.
        ninety: 90th percentile of the larger over the smaller.
        equal_share: share of rows equal to the last digit.
    """

    kind: str
    first: str
    second: str
    rows: int
    median: float
    ninety: float
    equal_share: float


def compare_sources(rows: pl.DataFrame, op: str, kinds: Sequence[str]) -> Iterator[Comparison]:
    """Yield every pair of sources with at least twenty keys in common, by precision."""
    columns = list(OPERATIONS[op].columns)
    for name, part in with_origin(rows).group_by(kinds or [columns[0]], maintain_order=True):
        sources = part["source"].unique().sort().to_list()
        tables = {
            source: part.filter(pl.col("source") == source)
            .group_by(columns)
            .agg(pl.col("latency_us").min())
            for source in sources
        }
        for i, first in enumerate(sources):
            for second in sources[i + 1 :]:
                both = tables[first].join(tables[second], on=columns, suffix="_b")
                if both.height < _MIN_COMMON:
                    continue
                ratio = (both["latency_us_b"] / both["latency_us"]).to_numpy()
                yield Comparison(
                    words(name) if kinds else "", first, second, both.height,
                    float(np.median(ratio)),
                    float(np.quantile(np.exp(np.abs(np.log(ratio))), 0.9)),
                    float((ratio == 1.0).mean()),
                )  # fmt: skip

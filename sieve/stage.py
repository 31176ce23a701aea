"""The contract of a stage: what it declares, what it returns, and the check that no row is lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from sieve.frames import KINDS, REJECTION_COLUMNS
from sieve.invariants import hold


@dataclass(frozen=True)
class Stage:
    """What a stage declares.

    Attributes:
        number: 1 to 7.
        name: as in `result.json`.
        purpose: one sentence.
        reasons: reason -> kind, every rejection it may make.
        adds: columns it adds to the admitted rows.
    """

    number: int
    name: str
    purpose: str
    reasons: Mapping[str, str]
    adds: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class StageResult:
    """What a stage returns.

    Attributes:
        admitted: rows that go on, with the columns it adds.
        rejected: rows that leave, with `kind`, `reason`, `observed`, `limit`, `unit`.
        tables: further frames by name, such as `simulations`.
        files: text files by path below the run folder.
    """

    admitted: pl.DataFrame
    rejected: pl.DataFrame
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


def no_rejections(candidates: pl.DataFrame) -> pl.DataFrame:
    """Return an empty rejection frame for candidates of this schema."""
    return reject(candidates.clear(), kind="", reason="", observed=0.0, limit=0.0, unit="")


def reject(
    rows: pl.DataFrame,
    *,
    kind: str | pl.Expr | pl.Series,
    reason: str | pl.Expr | pl.Series,
    observed: float | pl.Expr | pl.Series,
    limit: float | pl.Expr | pl.Series,
    unit: str | pl.Expr | pl.Series,
) -> pl.DataFrame:
    """Return rows with the rejection columns; texts and numbers are taken as constants."""
    given = {"kind": kind, "reason": reason, "observed": observed, "limit": limit, "unit": unit}
    columns = []
    for name, value in given.items():
        column = value if isinstance(value, pl.Expr) else pl.lit(value)
        columns.append(column.cast(REJECTION_COLUMNS[name]).alias(name))
    return rows.with_columns(columns)


def split(
    candidates: pl.DataFrame,
    fails: pl.Series,
    *,
    kind: str | pl.Series,
    reason: str | pl.Series,
    observed: float | pl.Series,
    limit: float | pl.Series,
    unit: str | pl.Series,
) -> StageResult:
    """Return candidates split by `fails`, the failing ones with their reason."""
    marked = reject(candidates, kind=kind, reason=reason, observed=observed, limit=limit, unit=unit)
    return StageResult(candidates.filter(~fails), marked.filter(fails))


def verify(stage: Stage, given: pl.DataFrame, result: StageResult) -> None:
    """Hold a stage to its contract: conservation of rows, declared columns, declared reasons.

    Raises:
        AssertionError: the stage broke it, which is a bug; also under `python -O`.
    """
    ids = pl.concat([result.admitted["candidate_id"], result.rejected["candidate_id"]])
    hold(len(ids) == len(given), f"{stage.name}: {len(given)} rows in, {len(ids)} out")
    hold(ids.n_unique() == len(ids), f"{stage.name}: a candidate came out twice")
    hold(set(ids) == set(given["candidate_id"]), f"{stage.name}: candidates were exchanged")
    missing = [c for c in stage.adds if c not in result.admitted.columns]
    hold(not missing, f"{stage.name}: columns declared but not added: {missing}")
    for reason, kind in result.rejected.select("reason", "kind").unique().iter_rows():
        hold(stage.reasons.get(reason) == kind, f"{stage.name}: undeclared {kind} {reason}")
        hold(kind in KINDS, f"{stage.name}: undeclared kind {kind}")

"""Equal rows are found, named once, and come back in their places."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from sieve.catalog.engines import load_engine
from sieve.catalog.models import load_model
from sieve.formulas.repeats import LEAST_ROWS, condensed, distinct
from sieve.memory.ledger import Ledger, LedgerInput, ledger
from sieve.validity.rules import Candidates, Verdicts, check


def grid(n: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(1)
    return {
        "tp": draw.choice([1, 2, 4], n), "size": np.full(n, 16),
        "share": draw.choice([0.85, 0.9], n), "eager": draw.choice([True, False], n),
    }  # fmt: skip


def test_rows_come_back_in_their_places() -> None:
    columns = grid(2 * LEAST_ROWS)
    found = condensed(columns)
    assert found is not None
    rows, place = found
    assert list(rows) == list(reversed(columns))
    for name, column in columns.items():
        assert rows[name].dtype == column.dtype
        assert (rows[name][place] == column).all(), name
    # 3 x 1 x 2 x 2 combinations, each once.
    assert len({tuple(values[i] for values in rows.values()) for i in range(12)}) == 12
    assert all(len(values) == 12 for values in rows.values())


def test_combinations_that_do_not_occur_are_left_out() -> None:
    tp = np.repeat([1, 2, 4], LEAST_ROWS)
    rows, place = condensed({"tp": tp, "ep": tp.copy()}) or ({}, None)
    assert sorted(zip(rows["tp"].tolist(), rows["ep"].tolist(), strict=True)) == [
        (1, 1), (2, 2), (4, 4),
    ]  # fmt: skip
    assert (rows["ep"][place] == tp).all()


def test_few_rows_or_many_values_are_left_as_they_are() -> None:
    assert condensed(grid(LEAST_ROWS - 1)) is None
    many = np.arange(2 * LEAST_ROWS, dtype=np.float64)
    assert condensed({"memory": many, "tp": np.ones(len(many))}) is not None  # n combinations
    assert condensed({"memory": many, "tp": np.arange(len(many)) % 2}) is None


def test_a_ledger_is_the_same_row_by_row() -> None:
    model, engine = load_model("Qwen/Qwen3-30B-A3B"), load_engine("vllm")
    n = LEAST_ROWS
    draw = np.random.default_rng(2)
    columns = {
        "memory_bytes": draw.choice([48e9, 80e9], n), "tp": draw.choice([1, 2, 8], n),
        "pp": draw.choice([1, 3, 4], n), "weight_bytes_per_param": draw.choice([1.0, 2.0], n),
        "kv_bytes_per_element": draw.choice([1.0, 2.0], n), "dcp": np.ones(n, np.int64),
        "max_num_seqs": draw.choice([64, 512], n), "block_size": np.full(n, 16),
        "utilisation": np.full(n, 0.9), "max_num_batched_tokens": draw.choice([2048, 8192], n),
    }  # fmt: skip
    columns["load_bytes_per_param"] = columns["weight_bytes_per_param"]
    together = ledger(model, engine, LedgerInput(**columns))
    for start in range(0, n, 1024):
        part = LedgerInput(
            **{name: column[start : start + 1024] for name, column in columns.items()}
        )
        alone = ledger(model, engine, part)
        for field in fields(Ledger):
            found = getattr(together, field.name)[start : start + 1024]
            assert (found == getattr(alone, field.name)).all(), field.name


def test_distinct_values_that_a_sample_misses() -> None:
    column = np.ones(5000)
    column[1] = np.nan
    column[3] = 7.0
    values, place = distinct(column)
    assert values[:2].tolist() == [1.0, 7.0]
    assert np.isnan(values[2])
    assert place[[0, 1, 3]].tolist() == [0, 2, 1]


def test_rules_are_the_same_row_by_row() -> None:
    n = LEAST_ROWS
    draw = np.random.default_rng(3)
    columns = {
        "tp": draw.choice([1, 3, 8, 16], n), "pp": draw.choice([1, 2, 64], n),
        "ep": np.ones(n, np.int64), "replicas": draw.choice([1, 4], n),
        "max_num_seqs": draw.choice([64, 4096], n), "max_num_batched_tokens": np.full(n, 2048),
        "max_model_len": np.full(n, 4096), "rates_known": draw.choice([True, False], n),
        "compute_capability": draw.choice([7.5, 9.0, np.nan], n),
        "needs_capability": np.full(n, 8.0), "dcp": draw.choice([1, 2], n),
    }  # fmt: skip
    model = load_model("Qwen/Qwen3-30B-A3B")
    limits = {"gpus_per_node": 8, "max_gpus": 16, "longest_request": 500}
    engine = load_engine("vllm")
    together = check(Candidates(model=model, **columns, **limits), engine.rules)
    assert len(set(together.reason.tolist())) > 5
    for start in range(0, n, 1024):
        rows = slice(start, start + 1024)
        part = {name: column[rows] for name, column in columns.items()}
        alone = check(Candidates(model=model, **part, **limits), engine.rules)
        for field in fields(Verdicts):
            one, other = getattr(together, field.name)[rows], getattr(alone, field.name)
            assert one.tolist() == other.tolist() or np.array_equal(one, other, equal_nan=True)

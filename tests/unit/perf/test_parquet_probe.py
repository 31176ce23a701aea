"""Files of others are decoded in a process of their own before this one touches them."""

import random

import polars as pl
import pytest

from sieve.errors import TableError
from sieve.perf import parquet_probe
from sieve.perf.parquet_probe import probe
from sieve.perf.table_import import import_tables

COLUMNS = ["gemm_dtype", "n", "k", "m", "latency_us"]


def table(path, rows=64):
    pl.DataFrame(
        {"gemm_dtype": "bfloat16", "n": 4096, "k": 4096, "m": range(1, rows + 1),
         "latency_us": [12.0 + i / 10 for i in range(rows)]}
    ).write_parquet(path)  # fmt: skip
    return path


def test_sound_files_come_through(tmp_path):
    probe([])
    probe([(table(tmp_path / f"{i}.parquet"), [*COLUMNS, "not there"]) for i in range(3)])


def test_the_first_file_that_fails_is_named(tmp_path):
    files = [table(tmp_path / f"{i}.parquet") for i in range(3)]
    files[1].write_bytes(files[1].read_bytes()[:100])
    with pytest.raises(TableError, match=r"1\.parquet: not a readable parquet file"):
        probe([(path, COLUMNS) for path in files])


def test_damage_is_refused_or_harmless_and_this_process_goes_on(tmp_path, h100):
    """Bytes overwritten at random; some such files abort the process that decodes them."""
    whole = table(tmp_path / "gemm.parquet").read_bytes()
    draw = random.Random(7)
    refused = 0
    for _ in range(12):
        content = bytearray(whole)
        for _ in range(20):
            content[draw.randrange(4, len(content))] = draw.randrange(256)
        (tmp_path / "gemm.parquet").write_bytes(content)
        try:
            import_tables(tmp_path, h100, "h100_sxm")
        except TableError:
            refused += 1
    assert refused >= 10


def test_a_child_that_is_killed_or_hangs_counts_as_refusal(tmp_path, monkeypatch):
    path = table(tmp_path / "gemm.parquet")
    monkeypatch.setattr(parquet_probe, "TIMEOUT_S", 0.001)
    with pytest.raises(TableError, match="decoding took over 0 s; import fewer files"):
        probe([(path, COLUMNS)])


def test_large_files_are_not_handed_on(tmp_path, monkeypatch):
    path = table(tmp_path / "gemm.parquet")
    monkeypatch.setattr(parquet_probe, "MAX_BYTES", 10)
    with pytest.raises(TableError, match="at most 10 are read; split"):
        probe([(path, COLUMNS)])

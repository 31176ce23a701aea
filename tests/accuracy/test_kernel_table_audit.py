"""The audit on the tables of all versions: it finds the defects that are known, by itself."""

import os
from pathlib import Path

import polars as pl
import pytest

from sieve.catalog.accelerators import load_gpu
from sieve.perf.kernel_table import system_folder
from sieve.perf.table_import import import_tables

DATA = os.environ.get("SIEVE_DATA")
SOURCE = Path(DATA or "") / "kernel_tables_source"
needs_source = pytest.mark.skipif(
    not DATA or not SOURCE.is_dir(), reason="SIEVE_DATA names no folder with kernel_tables_source"
)


@needs_source
@pytest.mark.parametrize(
    ("system", "versions"),
    [
        ("h100_sxm", {"0.24.0"}), ("h200_sxm", {"0.24.0"}), ("l40s", {"0.24.0"}),
        ("b200_sxm", {"0.24.0", "0.27.1"}),
    ],
)  # fmt: skip
def test_launches_in_the_timing_are_found_and_nothing_else_of_the_engine(system, versions):
    """Known: block-scaled FP8 products of these versions were timed without a CUDA graph."""
    result = import_tables(SOURCE / system, load_gpu(system), system)
    found = [f for op in result.findings.values() for f in op if f.rule == "launch_in_timing"]
    of_vllm = [f.where.split() for f in found if " vllm " in f" {f.where} "]
    assert {words[0] for words in of_vllm} == {"fp8_block"}
    assert {words[words.index("vllm") + 1] for words in of_vllm} == versions
    block = result.tables["gemm"].filter(pl.col("gemm_dtype") == "fp8_block")
    small = block.filter((pl.col("m") <= 32) & pl.col("condemned").is_null())
    assert small["latency_us"].quantile(0.01) < 20


@needs_source
@pytest.mark.parametrize("system", ["h100_sxm", "a100_sxm", "l40s"])
@pytest.mark.parametrize("op", ["gemm", "moe", "generation_attention", "nccl"])
def test_shipped_latencies_are_those_of_the_source(system, op):
    shipped = pl.read_parquet(system_folder(system) / f"{op}.parquet")
    compact = pl.read_parquet(SOURCE / "compact" / system / f"{op}.parquet")
    keys = [c for c in compact.columns if c in shipped.columns]
    keys = [c for c in keys if c not in {"latency_us", "source", "kernel_source"}]
    whole = [c for c in keys if shipped[c].dtype == pl.Int32]
    both = shipped.join(compact.with_columns(pl.col(whole).cast(pl.Int32)), on=keys, suffix="_was")
    first = keys[0]  # the precision or the collective; weight-only products come from elsewhere
    assert both.height == shipped.filter(pl.col(first).is_in(compact[first].unique())).height
    assert (both["latency_us"] == both["latency_us_was"]).all()


def test_condemned_rows_are_few_but_for_one_host():
    """Below a thousandth of the rows that step times use; L40S loses its collectives besides."""
    for system in ("h100_sxm", "h200_sxm", "a100_sxm", "l40s", "b200_sxm"):
        for op in ("gemm", "context_attention", "generation_attention", "moe"):
            marked = pl.read_parquet(system_folder(system) / f"{op}.parquet")["condemned"]
            assert marked.is_not_null().mean() < 2e-3
    rings = pl.read_parquet(system_folder("l40s") / "nccl.parquet")
    kept = rings.filter((pl.col("op_name") == "all_reduce") & pl.col("condemned").is_null())
    assert sorted(kept["num_gpus"].unique()) == [2, 4]

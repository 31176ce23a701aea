"""Audit of the shipped kernel tables, as the page `reports/validation/kernel_tables.md`.

    SIEVE_DATA=FOLDER python tests/accuracy/kernel_table_study.py \
        > reports/validation/kernel_tables.md

Reads the shipped tables, and from FOLDER/kernel_tables_source those of all versions and engines
that they were chosen from.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

from sieve.catalog.accelerators import load_gpu
from sieve.catalog.models import load_model
from sieve.perf.audit_compare import compare_sources
from sieve.perf.audit_finding import Finding
from sieve.perf.base import ServingShape
from sieve.perf.collectives import allreduce_timing
from sieve.perf.coverage import cover
from sieve.perf.kernel_table import load, system_folder
from sieve.perf.table_import import import_tables
from sieve.perf.table_schema import OPERATIONS

SYSTEMS = ("h100_sxm", "h200_sxm", "a100_sxm", "l40s", "b200_sxm")
NOISE_OPS = ("gemm", "context_attention", "generation_attention", "moe")
SIZES = (2**13, 2**15, 2**17, 2**19, 2**21, 2**23)


def main() -> None:
    """Write the page."""
    source = Path(os.environ.get("SIEVE_DATA", "")) / "kernel_tables_source"
    if not source.is_dir():
        sys.exit("set SIEVE_DATA to the folder that holds kernel_tables_source")
    everything = {
        system: import_tables(source / system, load_gpu(system), system) for system in SYSTEMS
    }
    findings = {system: found.findings for system, found in everything.items()}
    print(_HEAD)
    print("\n".join(_shipped()))
    print(_RULES)
    print("\n".join(_found()))
    print(_ALL_VERSIONS)
    print("\n".join(_launches(findings)))
    print(_NOISE)
    print("\n".join(_noise(source)))
    print(_APART)
    print("\n".join(_apart(findings)))
    print(_RING)
    print("\n".join(_rings(source)))
    print(_RING_REPEATS)
    print("\n".join(_repeats(source)))
    print(_RING_END)
    print("\n".join(_ring_effect()))
    print(_END)


def _shipped() -> Iterator[str]:
    yield "| GPU | operations | rows | not used | of these in step times | MB |"
    yield "|---|---|---|---|---|---|"
    for system in SYSTEMS:
        folder = system_folder(system)
        covered = cover(folder) if folder is not None else []
        rows, bad = sum(c.rows for c in covered), sum(c.condemned for c in covered)
        used = sum(c.condemned for c in covered if c.used)
        size = sum(c.bytes for c in covered) / 1e6
        name = load_gpu(system).name
        yield f"| {name} | {len(covered)} | {rows:,} | {bad} | {used} | {size:.2f} |"


def _found() -> Iterator[str]:
    yield "| GPU | operation | rule | rows | finding |"
    yield "|---|---|---|---|---|"
    for system in SYSTEMS:
        folder = system_folder(system)
        for entry in cover(folder) if folder is not None else []:
            for f in entry.findings if entry.used else ():
                rule = f"**{f['rule']}**" if f["condemns"] else f["rule"]
                where = f"{f['where']}: " if f["where"] else ""
                yield f"| {system} | {entry.op} | {rule} | {f['rows']:,} | {where}{f['detail']} |"


def _launches(findings: dict[str, dict[str, list[Finding]]]) -> Iterator[str]:
    yield "| GPU | operation | source and kernel | rows | finding |"
    yield "|---|---|---|---|---|"
    for system, tables in findings.items():
        for op, found in tables.items():
            for f in found:
                if f.rule in {"launch_in_timing", "faster_than_hardware"}:
                    yield f"| {system} | {op} | {f.where} | {len(f.rows):,} | {f.detail} |"


def _noise(source: Path) -> Iterator[str]:
    """Compare the two newest versions of vLLM, precision by precision."""
    yield "| GPU | operation | precision | versions | equal keys | median ratio | 90 % within |"
    yield "|---|---|---|---|---|---|---|"
    for system in SYSTEMS:
        for op in NOISE_OPS:
            frame = _all_rows(source / system / f"{op}.parquet", op)
            if frame is None:
                continue
            kinds = [*OPERATIONS[op].precision, *OPERATIONS[op].stored]
            newest: dict[str, object] = {}
            for pair in compare_sources(frame, op, kinds):
                if pair.equal_share < 0.5:
                    newest[pair.kind] = (
                        f"| {system} | {op} | {pair.kind} | {pair.first}, {pair.second} | "
                        f"{pair.rows:,} | {pair.median:.2f} | {pair.ninety:.2f} |"
                    )
            yield from (str(line) for line in newest.values())


def _all_rows(path: Path, op: str) -> pl.DataFrame | None:
    """Return a stacked table with microseconds and versions, replaced copies left out."""
    if not path.exists():
        return None
    frame = pl.read_parquet(path).filter(pl.col("src_status") != "replaced_in_aisimulate")
    for column, values in OPERATIONS[op].keep.items():
        if column in frame.columns:
            frame = frame.filter(pl.col(column).is_in(list(values)))
    version = pl.col("src_table_version").str.split(".").list.get(1).cast(pl.Int64)
    return frame.with_columns(
        [pl.lit(v).alias(c) for c, v in OPERATIONS[op].defaults.items() if c not in frame.columns]
    ).with_columns(
        latency_us=pl.col("latency") * 1000,
        source=pl.lit("0.") + version.cast(pl.String).str.zfill(2),
    )


def _apart(findings: dict[str, dict[str, list[Finding]]]) -> Iterator[str]:
    counts: Counter[tuple[str, str, str]] = Counter()
    worst: dict[tuple[str, str, str], str] = {}
    for system, tables in findings.items():
        for op, found in tables.items():
            for f in found:
                if f.rule in {"sources_disagree", "copied"}:
                    key = (f.rule, system, op)
                    counts[key] += 1
                    worst.setdefault(key, f"{f.where}: {f.detail}")
    yield "| rule | GPU | operation | pairs | first |"
    yield "|---|---|---|---|---|"
    for (rule, system, op), number in sorted(counts.items()):
        text = worst[rule, system, op].replace("|", "against")
        yield f"| {rule} | {system} | {op} | {number} | {text} |"


def _rings(source: Path) -> Iterator[str]:
    """Rate of one GPU in GB/s, 2 (n - 1) / n x bytes / time, of NCCL's all-reduce."""
    sizes = " | ".join(_bytes(size) for size in SIZES)
    yield f"| GPU | link, GB/s | GPUs | {sizes} |"
    yield "|" + "---|" * (3 + len(SIZES))
    for system in ("l40s", "a100_sxm", "h100_sxm"):
        gpu = load_gpu(system)
        frame = pl.read_parquet(source / "compact" / system / "nccl.parquet")
        frame = frame.filter((pl.col("op_name") == "all_reduce") & (pl.col("nccl_dtype") == "half"))
        for n in (2, 4, 8):
            times = dict(
                frame.filter(pl.col("num_gpus") == n).select("message_size", "latency_us").rows()
            )
            rates = [4e-3 * (n - 1) / n * size / times[size] for size in SIZES]
            cells = " | ".join(f"{rate:.2f}" for rate in rates)
            link = (gpu.link_bytes_per_s or gpu.pcie_bytes_per_s) / 1e9
            yield f"| {gpu.name} | {link:.0f} | {n} | {cells} |"


def _bytes(elements: int) -> str:
    """Return the size of a message of 16-bit numbers."""
    size = 2 * elements
    return f"{size // 2**20} MiB" if size >= 2**20 else f"{size // 2**10} KiB"


def _repeats(source: Path) -> Iterator[str]:
    """The same bytes sent as half and as int8: two measurements of one thing."""
    yield "| GPU | GPUs | pairs | median distance | 90 % within | largest |"
    yield "|---|---|---|---|---|---|"
    for system in SYSTEMS:
        frame = pl.read_parquet(source / "compact" / system / "nccl.parquet").with_columns(
            sent=pl.col("message_size").cast(pl.Int64)
            * pl.when(pl.col("nccl_dtype") == "half").then(2).otherwise(1)
        )
        half = frame.filter(pl.col("nccl_dtype") == "half")
        other = frame.filter(pl.col("nccl_dtype") != "half")
        both = half.join(other, on=["op_name", "num_gpus", "sent"], suffix="_b")
        both = both.filter((pl.col("op_name") == "all_reduce") & (pl.col("sent") >= 2**20))
        for n in (2, 4, 8):
            part = both.filter(pl.col("num_gpus") == n)
            ratio = np.exp(np.abs(np.log((part["latency_us"] / part["latency_us_b"]).to_numpy())))
            yield (
                f"| {system} | {n} | {len(ratio)} | {np.median(ratio):.3f} | "
                f"{np.quantile(ratio, 0.9):.3f} | {ratio.max():.2f} |"
            )


def _ring_effect() -> Iterator[str]:
    """What step times take for 8 L40S now, against the condemned rows."""
    path = system_folder("l40s")
    assert path is not None
    frame = pl.read_parquet(path / "nccl.parquet").filter(
        (pl.col("op_name") == "all_reduce") & (pl.col("num_gpus") == 8)
    )
    rows = dict(frame.select("message_size", "latency_us").rows())
    shape = ServingShape(
        load_model("Qwen/Qwen3-32B"), load_gpu("l40s"), tp=8, pp=1, ep=1, weight_dtype="bf16",
        kv_cache_dtype="auto", max_num_batched_tokens=8192, max_num_seqs=256, max_context=32768,
        weight_bytes_per_param=2.0,
    )  # fmt: skip
    tokens = np.array(SIZES) / shape.model.hidden_size
    used = allreduce_timing(shape, tokens).total_s / 1.2 * 1e6
    measured = load("l40s", "nccl")
    assert measured is not None
    four = np.interp(SIZES, *measured.curve(("all_reduce", "half", 4))) * 1e6
    yield "| all-reduce of | 8 GPUs, condemned, us | used instead, us | 4 GPUs, us |"
    yield "|---|---|---|---|"
    for size, now, small in zip(SIZES, used, four, strict=True):
        yield f"| {_bytes(size)} | {rows[size]:,.0f} | {now:,.0f} | {small:,.0f} |"


_HEAD = """# Kernel tables: what the audit found

Written by `tests/accuracy/kernel_table_study.py` from the shipped tables and the tables of all
versions and engines that they were chosen from.
[docs/kernel_tables.md](../../docs/kernel_tables.md) explains the rules. Ratios are of
times; a distance is the larger over the smaller.

## Shipped tables
"""
_RULES = """
## Findings on the tables that step times use

Bold rules condemn: the rows stay in the file, marked, and step times interpolate between the
others.
"""
_ALL_VERSIONS = """
## The same audit on all versions and engines

Known beforehand: block-scaled FP8 products of vLLM 0.24.0, and of 0.27.1 on B200, hold launches
from the host. The audit was told neither version nor precision; it finds these, and nothing else of
vLLM's. "(replaced)" marks a table that its publisher has since corrected. The import passes all of
them over.
"""
_NOISE = """
## Noise: the same kernel in two versions of vLLM

No table states a spread, so the last pair of versions stands in for it.
"""
_APART = """
## Engines and versions apart, and copies

Pairs whose median ratio lies beyond 1.5, and pairs that are one measurement under two versions.
"""
_RING = """
## All-reduce on L40S

Rate of one GPU in GB/s, 2 (n - 1) / n x bytes / time, NCCL:
"""
_RING_REPEATS = """
A pair of L40S reaches 0.6 of its link. The rate of 4 is a quarter of the pair's: as low as one path
allows that all share and that each byte crosses twice. The rate of 8 is 0.07 of the pair's, where
such a path leaves an eighth. The engine's own kernel on 8 (0.10) is below that line too, and its
"two versions" are equal to the last digit, so they are one measurement.

The same bytes sent as 16-bit and as 8-bit numbers are two measurements of one transfer, here from
1 MiB up:
"""
_RING_END = """
On 8 L40S they differ by 18 % in the median and by up to 62 %, on 2 and 4 by 0 and 7 %, on 8 of the
other GPUs by 4 to 10 % and 10 to 31 % at most. And the rates fall with size, from 2.1 GB/s at 1 MiB
to 1.5. For the rows speaks that NCCL and the engine's kernel, timed apart, agree within a half: the
host was slow, not the clock. So the rows tell of one host in trouble rather than of L40S. The audit
condemns the curve, and the engine's kernel on 4 and 8, which step times did not use. In their place
stands the ring of 4 with 7 steps in place of 3 (`extrapolated`, named in the run's assumptions):
"""
_END = """
On 8 L40S the repeats of a steady transfer differ by a tenth to a half where all other GPUs repeat
within a few per cent. For the rows speaks that NCCL and the engine's kernel agree within a third:
the host was slow, not the clock. So the rows are true of one host whose wiring no fleet should be
sized by, and not true of L40S. The audit condemns the curve, and also the engine's kernel on 4 and
8, which step times did not use. In their place stands the ring of 4 with 7 steps in place of 3
(`extrapolated`, named in the run's assumptions):
"""
_END = """
This is an estimate. No measured run of 8 L40S is at hand to hold it against; who has such a host
can time its all-reduce and import the table.

## Limits

- The tables have no spread and mostly one measurement a point; a row that is wrong by less than a
  factor of two, or wrong together with its neighbours, is not found.
- `not_monotone` steps of products are mostly real: kernels change between 16 and 17, 32 and 33, 64
  and 65 tokens. They are kept. So are FP8 experts on L40S split 16 or 32 ways, which take 20 to 50
  times longer from 80 to 128 tokens and from 768 on, in several shapes alike.
- Latent, linear and encoder attention and the quantisation kernels are audited but not yet part of
  step times.
- Not measured by the sources: norms and other element-wise kernels, collectives across hosts,
  prefill against cached tokens."""

if __name__ == "__main__":
    main()

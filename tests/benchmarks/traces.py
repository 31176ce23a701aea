"""Time to read a million requests, by format; CPU seconds are those of all threads.

python tests/benchmarks/traces.py [REQUESTS]
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from sieve.spec import TrafficSpec
from sieve.traces import load_traffic


def files(folder: Path, n: int) -> dict[str, dict[str, object]]:
    """Write a file of each format and return the keys of a spec's traffic."""
    rng = np.random.default_rng(0)
    ms = np.cumsum(rng.exponential(10.0, n)).astype(np.int64)
    isl, osl = rng.integers(100, 4000, n), rng.integers(1, 900, n)
    user = rng.integers(0, n // 10, n)
    date = pl.from_epoch(pl.Series(ms), "ms").dt.strftime("%Y-%m-%d %H:%M:%S%.6f")
    base = pl.DataFrame({"ms": ms, "isl": isl, "osl": osl, "user": user, "date": date})

    def csv(name: str, **columns: pl.Expr) -> str:
        base.select(**columns).write_csv(folder / name)
        return name

    def lines(name: str, **columns: pl.Expr) -> str:
        base.select(**columns).write_ndjson(folder / name)
        return name

    c = pl.col
    ids = pl.int_ranges(c("user"), c("user") + (c("isl") + 511) // 512)
    small = pl.int_ranges(c("user"), c("user") + (c("isl") // 8 + 16) // 16)
    short = {
        "timestamp": c("ms") / 1e3,
        "input_length": c("isl") // 8 + 1,
        "output_length": c("osl"),
    }
    jsonl = {"timestamp": c("ms"), "input_length": c("isl"), "output_length": c("osl")}
    names = {"Timestamp": c("ms") / 1e3, "Request tokens": c("isl"), "Response tokens": c("osl")}
    own = base.select(arrival_s=c("ms") / 1e3, input_tokens=c("isl"), output_tokens=c("osl"))
    own.write_parquet(folder / "own.parquet")
    own.write_csv(folder / "own.csv")
    lines("moon.jsonl", **jsonl, hash_ids=ids)
    packed = gzip.compress((folder / "moon.jsonl").read_bytes(), 1)
    (folder / "moon.jsonl.gz").write_bytes(packed)
    turns = [
        {"id": str(i), "block_size": 64, "requests": [
            {"t": 1.0 * k, "in": int(isl[j]), "out": int(osl[j]), "think_time": 0.5}
            for k, j in enumerate(range(i * 50, i * 50 + 50))]}
        for i in range(n // 50)
    ]  # fmt: skip
    (folder / "weka.jsonl").write_text("".join(json.dumps(t) + "\n" for t in turns))
    dialogues = [{"conversations": [{"value": "x" * 60}, {"value": "y" * 90}]}] * n
    (folder / "share.json").write_text(json.dumps(dialogues))
    start = {"arrival": {"poisson_per_s": 5.0}}
    return {
        "azure_csv": {"trace": csv("azure.csv", TIMESTAMP=c("date"), ContextTokens=c("isl"),
                                   GeneratedTokens=c("osl"))},
        "burstgpt_csv": {"trace": csv("burst.csv", **names, Model=pl.lit("GPT-4"))},
        "mooncake_trace": {"trace": "moon.jsonl", "format": "mooncake_trace"},
        "mooncake_trace, gz": {"trace": "moon.jsonl.gz", "format": "mooncake_trace"},
        "timed_trace": {"trace": lines("timed.jsonl", **jsonl), "format": "timed_trace"},
        "bailian_trace": {"trace": lines("bailian.jsonl", chat_id=pl.int_range(n),
                          parent_chat_id=pl.lit(-1), **short, hash_ids=small)},
        "weka_trace": {"trace": "weka.jsonl", "arrival": {"poisson_per_s": 1.0}},
        "llmservingsim": {"trace": lines("sim.jsonl", input_toks=c("isl"), output_toks=c("osl"),
                                         arrival_time_ns=c("ms") * 1_000_000)},
        "sieve_table, Parquet": {"trace": "own.parquet"},
        "sieve_table, CSV": {"trace": "own.csv"},
        "access_log": {"trace": csv("log.csv", when=c("date"), i=c("isl"), o=c("osl"), u=c("user")),
                       "columns": {"ts": "when", "in": "i", "out": "o", "session": "u"}},
        "lengths": {"trace": csv("len.csv", input_length=c("isl"), output_length=c("osl")),
                    **start},
        "sharegpt": {"trace": "share.json", "characters_per_token": 4.0, **start},
    }  # fmt: skip


def main() -> int:
    """Print a row for each format."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = files(folder, n)
        print(f"{n:,} requests\n\n| format | MB | wall s | CPU s |\n|---|---|---|---|")
        for label, keys in cases.items():
            size = (folder / str(keys["trace"])).stat().st_size / 1e6
            start, cpu = time.perf_counter(), time.process_time()
            got = load_traffic(TrafficSpec(**keys), seed=0, base_dir=folder)
            took, cpu = time.perf_counter() - start, time.process_time() - cpu
            assert len(got) == n // 50 * 50 if label == "weka_trace" else len(got) == n
            print(f"| {label} | {size:,.0f} | {took:.2f} | {cpu:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Traffic drawn from a summary against the trace itself, as `reports/validation/traffic.md`.

    SIEVE_DATA=FOLDER python tests/accuracy/traffic_study.py [TRACE]

With the beginning of a trace's name only its row is written anew.

A summary is good if a replay cannot tell the difference: each trace and traffic drawn from its
summary are replayed on one deployment, and the p99 of TTFT is compared. Writes figures, not rows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from sieve.arrays import Requests, chain_starts
from sieve.detail import choose, prepare, sized
from sieve.parallel import LocalExecutor
from sieve.perf.cache import FAMILY
from sieve.sim.replay import simulate
from sieve.spec import TrafficSpec, load_spec
from sieve.traces import build, load_traffic
from sieve.traces.commands import summary_of
from sieve.traces.draw import draw
from stages import s5_simulate

OUT = Path(__file__).parents[2] / "reports" / "validation" / "traffic.md"
LIMIT = 0.15
SEEDS = range(3)
MODEL, GPU, TP = "openai/gpt-oss-120b", "H100-SXM-80GB", 2


@dataclass(frozen=True)
class Case:
    """A trace and how it is replayed; several seeds of the trace where its arrivals are stated."""

    name: str
    keys: dict[str, object]
    replicas: int
    arrivals: str
    whole: bool = True


def _table(name: str, path: str, rate: float, n: int = 4000) -> Case:
    keys = {"trace": path, "arrival": {"poisson_per_s": rate}, "requests": n}
    return Case(name, keys, 1, f"Poisson {rate:g}/s, stated", whole=False)


CASES = [
    Case(
        "azure_llm_2023_conv", {"trace": build.CHAT_FILE}, 1, "measured"
    ),
    Case(
        "mooncake_conversation",
        {"trace": "traces/mooncake_conversation/conversation_trace.jsonl.gz",
         "format": "mooncake_trace"}, 3, "measured",
    ),
    Case(
        "servegen_deepseek_r1, 36000 to 36600 s",
        {"trace": "traces/servegen_deepseek_r1", "window_s": [36000, 36600]}, 12, "client model",
    ),
    Case(
        "servegen_m_mid_2days, 36000 to 36030 s",
        {"trace": "traces/servegen_m_mid_2days", "window_s": [36000, 36030]}, 32, "client model",
    ),
    _table("mlperf llama2-70b-99", "traces/mlperf_lengths/llama2-70b-99.parquet", 8),
    _table("mlperf mixtral-8x7b", "traces/mlperf_lengths/mixtral-8x7b.parquet", 8),
    _table("mlperf llama3-1-405b", "traces/mlperf_lengths/llama3-1-405b.parquet", 2),
    _table("mlperf llama3-1-8b", "traces/mlperf_lengths/llama3-1-8b-datacenter.parquet", 8),
    _table("mlperf deepseek-r1", "traces/mlperf_lengths/deepseek-r1.parquet", 1),
    _table("arxiv_summarization", "traces/arxiv_summarization_lengths/lengths.parquet", 5),
    Case(
        "sharegpt_vicuna",
        {"trace": "traces/sharegpt_vicuna_lengths/lengths.parquet", "on_error": "skip",
         "arrival": {"poisson_per_s": 2.0}, "requests": 4000}, 1, "Poisson 2/s, stated",
        whole=False,
    ),
    Case(
        "claude_code_agentic, turns up to 120,000 tokens",
        {"trace": build.CODING_FILE, "arrival": {"poisson_per_s": 0.02}}, 2,
        "session starts stated", whole=False,
    ),
]  # fmt: skip


class Replayer:
    """Replays traffic on one deployment; its step times are built once."""

    def __init__(self) -> None:
        spec = load_spec(
            {
                "name": "study", "model": MODEL, "traffic": {"trace": "chat", "levels": [1.0]},
                "slo": {"ttft_p99": "100 s"}, "fleet": {"gpus": [GPU], "max_gpus": 2},
                "grid": {"axes": {
                    "gpu": [GPU], "tp": [TP], "pp": [1], "replicas": [1], "weight_dtype": ["mxfp4"],
                    "kv_cache_dtype": ["auto"], "max_num_seqs": [256],
                    "max_num_batched_tokens": [8192],
                }},
            }
        )  # fmt: skip
        context, grid = prepare(spec, LocalExecutor())
        frame = sized(choose(grid.candidates, "tp=2"), context)
        row = frame.row(0, named=True)
        shared = s5_simulate.shared_of(frame, context)
        self.table = shared.tables[tuple(row[name] for name in FAMILY)]
        self.settings = s5_simulate.settings_of(row, context)

    def __call__(self, requests: Requests, replicas: int) -> tuple[float, float, float]:
        """Return TTFT p50 and p99 in seconds, and the share of prompt tokens from the cache."""
        result = simulate(requests, self.table, self.settings, replicas)
        assert result.status == "", result.status
        ttft = result.first_token_s - result.arrival_s
        share = float(result.cached_tokens.sum() / requests.input_tokens.sum())
        p50, p99 = np.percentile(ttft, [50, 99])
        return float(p50), float(p99), share


def traffic_of(case: Case, folder: Path, seed: int) -> Requests:
    """Return the trace itself; coding sessions are cut to the context as the shipped ones are."""
    if case.keys["trace"] == build.CODING_FILE:
        requests = _sessions(folder)
    else:
        requests = load_traffic(TrafficSpec(**case.keys), seed=seed, base_dir=folder)
    if case.keys["trace"] != build.CODING_FILE:
        return requests
    assert requests.previous is not None
    assert requests.delay_s is not None
    short = requests.input_tokens + requests.output_tokens <= build.MOST_TOKENS
    goes_on = (requests.previous >= 0) & (requests.delay_s <= build.MOST_PAUSE_S)
    goes_on &= short[requests.previous]
    cut = replace(requests, previous=np.where(goes_on, requests.previous, -1))
    kept = cut.take(np.flatnonzero(short))
    assert kept.previous is not None
    roots, chain = np.unique(chain_starts(kept.previous), return_inverse=True)
    rng = np.random.default_rng(seed)
    starts = np.cumsum(rng.exponential(50.0, len(roots)))
    return kept_order(replace(kept, arrival_s=starts[rng.permutation(len(roots))][chain]))


@lru_cache(maxsize=1)
def _sessions(folder: Path) -> Requests:
    case = next(case for case in CASES if case.keys["trace"] == build.CODING_FILE)
    return load_traffic(TrafficSpec(**case.keys), seed=0, base_dir=folder)


def kept_order(requests: Requests) -> Requests:
    """Return the first 4,000 turns by session start, the first at 0."""
    order = np.argsort(requests.arrival_s, kind="stable")[:4000]
    first = requests.take(order)
    return replace(first, arrival_s=first.arrival_s - first.arrival_s[0])


def rows(folder: Path, only: str) -> Iterator[list[str]]:
    """Yield a row of the page for each case whose name begins with `only`."""
    replay = Replayer()
    for case in CASES:
        if not case.name.startswith(only):
            continue
        seeds = [0] if case.whole else list(SEEDS)
        originals, drawn, shares, bytes_ = [], [], [], 0
        for seed in SEEDS:
            if seed in seeds:
                original = traffic_of(case, folder, seed)
                p50, p99, share = replay(original, case.replicas)
                originals.append((p50, p99, share))
                summary = summary_of(original)
                bytes_ = len(summary.to_json())
            again = draw(summary, len(original), None, seed)
            drawn.append(replay(again, case.replicas))
        first, new = np.array(originals), np.array(drawn)
        truth = np.median(first[:, 1])
        error = np.median(new[:, 1]) / truth - 1
        each = new[:, 1] / (first[:, 1] if len(first) > 1 else truth) - 1
        shares = (np.median(first[:, 2]), np.median(new[:, 2]))
        sys.stderr.write(f"{case.name}: {truth:.3f} s, {error:+.1%}, {shares}\n")
        yield [
            case.name, case.arrivals, f"{len(original):,}", f"{case.replicas}", f"{bytes_:,}",
            f"{np.median(first[:, 0]) * 1e3:,.0f} / {np.median(new[:, 0]) * 1e3:,.0f}",
            f"{truth * 1e3:,.0f}", f"{np.median(new[:, 1]) * 1e3:,.0f}", f"{error:+.1%}",
            f"{each.min():+.1%} to {each.max():+.1%}",
            f"{shares[0]:.1%} / {shares[1]:.1%}",
            "yes" if abs(error) <= LIMIT else "**no**",
        ]  # fmt: skip


HEAD = ("trace", "arrivals", "requests", "replicas", "summary bytes", "p50 ms, trace / drawn",
        "p99 ms, trace", "p99 ms, drawn", "error", "single draws", "cached, trace / drawn",
        "within 15 %")  # fmt: skip


def main() -> int:
    """Write the page; return the exit code."""
    if not os.environ.get("SIEVE_DATA"):
        sys.stderr.write("SIEVE_DATA is not set: it names the folder with the traces\n")
        return 2
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    found = {row[0]: row for row in written()} if only else {}
    for row in rows(Path(os.environ["SIEVE_DATA"]), only):
        found[row[0]] = row
        OUT.write_text(page([found[c.name] for c in CASES if c.name in found]), encoding="utf-8")
    return 0


def written() -> list[list[str]]:
    """Return the rows of the page as it is."""
    lines = OUT.read_text(encoding="utf-8").splitlines() if OUT.exists() else []
    table = [line for line in lines if line.startswith("| ")][2:]
    return [line.strip("| ").split(" | ") for line in table]


def page(found: list[list[str]]) -> str:
    """Return the page with the rows found so far."""
    within = sum(row[-1] == "yes" for row in found)
    table = [HEAD, tuple("---" for _ in HEAD), *found]
    lines = "\n".join("| " + " | ".join(row) + " |" for row in table)
    missing = [case.name for case in CASES if case.name not in {row[0] for row in found}]
    if missing:
        lines += f"\n\nNot replayed for this page: {'; '.join(missing)}."
    return f"""# Traffic drawn from a summary, held against the trace

Written by `SIEVE_DATA=FOLDER python tests/accuracy/traffic_study.py`. Each trace is summarised as
`sieve trace inspect --summary` does, traffic is drawn from the summary alone, and both are replayed
on {MODEL}, {GPU}, TP {TP}, 256 sequences, 8,192 batched tokens. Errors are of the p99 of TTFT: the
median of three draws over the trace's own, and the range of the single draws. Where arrivals are
stated, the trace too is replayed with three seeds of them. {within} of {len(found)} traces are
within 15 %.

{lines}

What a summary does not keep: the order of long and short requests, who sends them, bursts shorter
than a window beyond its coefficient of variation, and which prefixes grow together. Windows last
five minutes, or as long as 500 requests take where the rate changes inside them: with one window
for all 30 s of servegen_m_mid its row was at -16.6 %, because the counts of its seconds vary 206
times as much as a Poisson process's, and those drawn varied 2.5 times. Sessions are drawn turn by
turn from the length of the prompt before; that some sessions grow faster than others throughout is
lost. A session that begins after a long pause starts cold in drawn traffic, where the original
finds a part of its prompt again. The data sets are read through `SIEVE_DATA` and are not shipped;
their sources are named in `NOTICE` and `sieve/traces/data/PROVENANCE.md`.
"""


if __name__ == "__main__":
    sys.exit(main())

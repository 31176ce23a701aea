"""Fleets: scaling, equal GPUs, three winners, prefill and decode apart; as a page.

    SIEVE_DATA=FOLDER python tests/accuracy/fleet_study.py [FILE]

Writes `reports/validation/fleet.md`. The agentic sessions and the runs of separate pools are other
people's data, read from SIEVE_DATA and not shipped. Takes some minutes on one core.
"""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from fleet_pools import best_ratios, pool_lines, separate_pools

import sieve
from sieve.arrays import PrefixBlocks, Requests
from sieve.fleet.shapes import Shape, load_shapes, one_replica, prepared, shapes_of
from sieve.scaling import scaling as replica_search
from sieve.sim.metrics import per_request, statistic_of
from sieve.traces.chains import chain_ids
from stages import s1_validity, s2_memory_fit, s3_batch_sizing

OUT = Path(__file__).parents[2] / "reports" / "validation" / "fleet.md"
SESSIONS: Final = 256
SESSION_USERS: Final = 64
LONGEST: Final = 200_000
MAX_THINK_S: Final = 30.0
"""A user who thinks longer is taken to have left the engine to others."""
AGENTIC: Final = {
    "name": "agentic",
    "model": "Qwen/Qwen3-Coder-480B-A35B-Instruct",
    "traffic": {
        "synthetic": {
            "requests": 20,
            "isl": LONGEST,
            "osl": 400,
            "arrival": {"poisson_per_s": 1},
        }
    },
    "slo": {"ttft_p99": "10 s"},
    "fleet": {"gpus": ["H200-SXM-141GB"], "max_gpus": 64},
}
AGENTIC_SHAPE: Final = (
    "tp=8,pp=1,ep=1,replicas=1,weight_dtype=fp8,kv_cache_dtype=fp8,max_num_seqs=256,"
    "max_num_batched_tokens=8192"
)
CHAT: Final = {
    "name": "chat",
    "model": "Qwen/Qwen3-32B",
    "traffic": {"trace": "chat", "rate_per_s": 12, "levels": [1.0]},
    "slo": {"ttft_p99": "2 s", "tpot_p99": "50 ms"},
    "fleet": {"gpus": ["H100-SXM-80GB"], "max_gpus": 8},
}
CHAT_SHAPE: Final = (
    "tp=1,pp=1,replicas=1,weight_dtype=fp8,kv_cache_dtype=fp8,max_num_seqs=256,"
    "max_num_batched_tokens=8192"
)
REPLICAS: Final = range(1, 9)
USERS: Final = 256
BAND: Final = 0.05
WINNERS: Final = {
    "chat": (CHAT["traffic"] | {"rate_per_s": 12}, {"ttft_p99": "2 s", "tpot_p99": "50 ms"}),
    "reasoning": (
        {"trace": "reasoning", "requests": 600, "rate_per_s": 1, "levels": [1.0]},
        {"ttft_p99": "5 s", "tpot_p99": "60 ms"},
    ),
    "long prompts, short answers": (
        {
            "synthetic": {
                "requests": 600,
                "isl": {"distribution": "lognormal", "mean": 8000, "stdev": 6000, "max": 30000},
                "osl": {"distribution": "lognormal", "mean": 60, "stdev": 40, "min": 2},
                "arrival": {"poisson_per_s": 3},
            },
            "levels": [1.0],
        },
        {"ttft_p99": "4 s", "tpot_p99": "100 ms"},
    ),
}


def agentic(data: Path) -> tuple[Requests, np.ndarray[Any, Any]]:
    """Return sessions in closed loop, and the user of each request.

    A turn comes when the answer before and the think time have passed. Each user has one session
    after another; sessions go to the user with the fewest tokens so far, longest first.
    """
    frame = pl.read_parquet(data / "traces" / "claude_code_agentic" / "requests.parquet")
    names = frame["session_id"].unique(maintain_order=True).head(SESSIONS)
    frame = frame.filter(
        pl.col("session_id").is_in(names.to_list()) & (pl.col("agent_id").fill_null("") == "")
    )
    whole = (pl.col("in") + pl.col("out") <= LONGEST) & (pl.col("in") > 0) & (pl.col("out") > 0)
    frame = frame.sort("session_id", "seq").filter(whole.cum_min().over("session_id"))
    size = (
        frame.group_by("session_id")
        .agg(pl.col("out").sum())
        .sort("out", "session_id", descending=[True, False])
    )
    held, user_of = np.zeros(SESSION_USERS), {}
    for name, tokens in size.iter_rows():
        user_of[name] = int(held.argmin())
        held[user_of[name]] += tokens
    users = frame["session_id"].replace_strict(user_of, return_dtype=pl.Int64)
    frame = frame.with_columns(user=users).sort("user", "session_id", "seq")
    user = frame["user"].to_numpy()
    n = len(frame)
    begins = np.concatenate(([True], user[1:] != user[:-1]))
    session = frame["session_id"].rank("dense").to_numpy().astype(np.int64) - 1
    count = frame["hash_ids"].list.len().to_numpy().astype(np.int64)
    prompt = frame["in"].to_numpy().astype(np.int64)
    start = np.concatenate(([0], np.cumsum(count))).astype(np.int64)
    ids = frame["hash_ids"].explode().drop_nulls().to_numpy().astype(np.int64)
    ids = ids + np.repeat(session, count) * (int(ids.max()) + 1)
    think_s = np.clip(frame["think_time"].fill_null(0).to_numpy(), 0, MAX_THINK_S)
    requests = Requests(
        arrival_s=np.zeros(n),
        input_tokens=prompt,
        output_tokens=frame["out"].to_numpy().astype(np.int64),
        previous=np.where(begins, -1, np.arange(n) - 1).astype(np.int64),
        delay_s=np.where(begins, 0.0, think_s).astype(np.float64),
        prefix=PrefixBlocks(64, start, chain_ids(start, ids), prompt),
    )
    return requests, user


def scaling(
    shape: Shape, requests: Requests, user: np.ndarray[Any, Any] | None = None
) -> list[dict[str, float]]:
    """Return one row a number of replicas: throughput, its efficiency, cache hits.

    With users the throughput is that until the first of them has no session left: what comes after
    is the end of the data, not of the engines.
    """
    rows: list[dict[str, float]] = []
    for replicas in REPLICAS:
        result = shape.replay(requests, replicas)
        assert result.status == "", result.status
        end_s = result.makespan_s
        if user is not None:
            end_s = min(float(result.finish_s[user == u].max()) for u in range(SESSION_USERS))
        done = result.finish_s <= end_s if user is not None else np.ones(len(requests), np.bool_)
        served = float(requests.output_tokens[done].sum()) / end_s
        times = per_request(requests, result)
        rows.append(
            {
                "replicas": replicas,
                "tokens_per_s": served,
                "efficiency": served / (replicas * rows[0]["tokens_per_s"]) if rows else 1.0,
                "cached": float(result.cached_tokens.sum() / requests.input_tokens.sum()),
                "preemptions": int(result.num_preemptions.sum()),
                "ttft_p50_s": statistic_of(times["ttft"], "p50"),
                "tpot_p99_s": statistic_of(times["tpot"], "p99"),
            }
        )
    return rows


def equal_gpus() -> list[dict[str, Any]]:
    """Return every shape of the default grid on eight GPUs under the same closed loop."""
    context, grid = prepared(CHAT, [])
    frame = one_replica(grid.candidates)
    for module in (s1_validity, s2_memory_fit, s3_batch_sizing):
        frame = module.run(frame, context).admitted
    requests = replace(
        context.requests, closed_loop_users=USERS, arrival_s=np.zeros(len(context.requests))
    )
    rows = []
    for shape in shapes_of(frame, context):
        replicas = 8 // shape.gpus
        result = shape.replay(requests, replicas)
        times = per_request(requests, result)
        rows.append(
            {
                "id": shape.candidate_id(replicas),
                "tokens_per_s": float(requests.output_tokens.sum()) / result.makespan_s,
                "tpot_p99_s": statistic_of(times["tpot"], "p99"),
            }
        )
    return rows


def pair_ratios(rows: Sequence[Mapping[str, Any]]) -> tuple[np.ndarray[Any, Any], int]:
    """Return the larger over the smaller throughput of all pairs with a close p99 TPOT."""
    tpot = np.array([row["tpot_p99_s"] for row in rows])
    rate = np.array([row["tokens_per_s"] for row in rows])
    one, other = np.triu_indices(len(rows), 1)
    close = np.maximum(tpot[one], tpot[other]) <= (1 + BAND) * np.minimum(tpot[one], tpot[other])
    high, low = np.maximum(rate[one], rate[other]), np.minimum(rate[one], rate[other])
    return (high / low)[close], len(one)


def winner(traffic: Mapping[str, Any], slo: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leader of a run on three GPU types, with what comes nearest to breaking."""
    spec = CHAT | {
        "traffic": dict(traffic), "slo": dict(slo),
        "fleet": {"gpus": ["H100-SXM-80GB", "H200-SXM-141GB", "L40S-48GB"], "max_gpus": 8},
    }  # fmt: skip
    result = sieve.run(spec)
    at_one = next(row for row in result.data["levels"] if row["level"] == 1.0)
    first = result.data["ranking"][0]
    rivals: dict[str, Any] = {}
    for row in result.data["ranking"]:
        rivals.setdefault(row["gpu"], row)
    return {"leader": first, "level": at_one, "rivals": rivals}


def scaling_lines(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """Return a table of replicas."""
    lines = [
        "| replicas | output tokens/s | efficiency | prompt tokens from cache | preemptions | TTFT p50 s | TPOT p99 ms |",  # noqa: E501
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['replicas']} | {row['tokens_per_s']:,.0f} | {row['efficiency']:.1%} | "
        f"{row['cached']:.1%} | {row['preemptions']:,} | {row['ttft_p50_s']:.2f} | "
        f"{row['tpot_p99_s'] * 1e3:.1f} |"
        for row in rows
    ]
    return lines


def winner_lines() -> list[str]:
    """Return the three workloads with their winners."""
    lines = [
        "| workload | leader | verdict | USD/Mtok | nearest limit | of it used | binds | best of the other GPUs |",  # noqa: E501
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, (traffic, slo) in WINNERS.items():
        found = winner(traffic, slo)
        first, level = found["leader"], found["level"]
        others = "; ".join(
            f"`{row['candidate_id']}` {row['verdict']}, {row['usd_per_mtok']['mid']:.2f}"
            for gpu, row in found["rivals"].items()
            if gpu != first["gpu"]
        )
        lines.append(
            f"| {name} | `{first['candidate_id']}` | {first['verdict']} | "
            f"{first['usd_per_mtok']['mid']:.2f} | {level['nearest']} | {level['used']:.0%} | "
            f"{level['binds'] or 'nothing'} | {others or 'none ranked'} |"
        )
    return lines


def told(text: str) -> list[str]:
    """Return a paragraph in lines, and an empty line."""
    return [*textwrap.wrap(" ".join(text.split()), 96), ""]


def page(data: Path) -> str:
    """Return the page."""
    lines = ["# Fleets", ""]
    lines += told("""Written by `tests/accuracy/fleet_study.py`. Everything but the last section is
        this tool's own replay: it shows what follows from replaying all replicas, not that a
        service does it.""")
    lines += [*agentic_section(data), *chat_section(), *equal_section(), *winner_section()]
    return "\n".join([*lines, *pool_section(data), *speed_section()]).rstrip() + "\n"


def agentic_section(data: Path) -> list[str]:
    """Return the scaling of agentic sessions."""
    _, (coder,), _ = load_shapes(AGENTIC, [AGENTIC_SHAPE])
    sessions, user = agentic(data)
    rows = scaling(coder, sessions, user)
    mean = int(sessions.input_tokens.mean())
    return [
        "## Replicas at saturation", "",
        *told(f"""Agentic: the first {SESSIONS} sessions of a public set of coding-agent sessions
            (main agent, each cut before its first request above {LONGEST:,} tokens): {len(user):,}
            requests with {mean:,} prompt tokens in the mean. {SESSION_USERS} users work in closed
            loop, one session after another; a turn comes when the answer and the recorded think
            time (at most {MAX_THINK_S:g} s) have passed. Qwen3-Coder-480B in FP8 on 8 H200 a
            replica (TP 8), users dealt round robin, throughput until the first user is done."""),
        *scaling_lines(rows), "",
        *agentic_words(rows),
    ]  # fmt: skip


def chat_section() -> list[str]:
    """Return the scaling of chat."""
    spec = CHAT | {"traffic": CHAT["traffic"] | {"requests": 20000}}
    _, (chat,), _ = load_shapes(spec, [CHAT_SHAPE])
    rows = scaling(chat, replace(chat.context.requests, arrival_s=np.zeros(20000)))
    return [
        *told("""`chat`: 20,000 requests at once, Qwen3-32B in FP8 on one H100 a replica, round
            robin."""),
        *scaling_lines(rows), "",
        *told("""Here nothing is shared and every replica is full, so only the deal and the end
            count: the replica that drew the longest work ends last, and as it empties its batch
            shrinks. Both weigh more the fewer requests a replica gets."""),
    ]  # fmt: skip


def equal_section() -> list[str]:
    """Return the pairs with a close tail on the same GPUs."""
    fleets = equal_gpus()
    ratios, pairs = pair_ratios(fleets)
    at = np.percentile(ratios, (10, 50, 90, 99))
    edges = (1.0, 1.02, 1.05, 1.1, 1.25, 1.5, 2.0, np.inf)
    counts = np.histogram(ratios, edges)[0]
    return [
        "## The same eight GPUs", "",
        *told(f"""Every shape of the default grid that fits ({len(fleets)}), each filling 8 H100, on
            `chat` in closed loop with {USERS} users (2,000 requests). Of {pairs:,} pairs
            {len(ratios):,} have p99 TPOT within {BAND:.0%} of each other; the larger over the
            smaller of their throughputs:"""),
        "| p10 | median | p90 | p99 | most |", "|---|---|---|---|---|",
        "| " + " | ".join(f"{x:.2f}" for x in (*at, ratios.max())) + " |", "",
        "| ratio | pairs |", "|---|---|",
        *(
            f"| {low:g} to {high:g} | {number:,} ({number / len(ratios):.0%}) |"
            for (low, high), number in zip(pairwise(edges), counts, strict=True)
        ),
        "",
        *told("""Equal tails of TPOT do not mean equal fleets: a cap on seats holds TPOT down and
            makes requests wait for a seat instead, which TPOT does not see and TTFT and throughput
            do."""),
    ]  # fmt: skip


def winner_section() -> list[str]:
    """Return three workloads with three winners."""
    return [
        "## Three workloads, three winners", "",
        *told("""Qwen3-32B on H100, H200 or L40S, up to 8 GPUs, cheapest first (the default
            objective)."""),
        *winner_lines(), "",
        *told("""Chat is held by TPOT: prompts of a thousand tokens disturb those that decode, least
            in small steps and when spread over more replicas. Reasoning writes long answers: its
            time is decoding, the weights are read once for a large batch, and one copy of them on
            two GPUs leaves room for it; its limits are far away and the price decides. Long prompts
            with short answers are prefill: the arithmetic and the time that a prompt holds up
            others decide, so tensor parallel and a large token budget win."""),
    ]  # fmt: skip


def pool_section(data: Path) -> list[str]:
    """Return predicted against measured for separate pools."""
    pools = separate_pools(data)
    hits, full = best_ratios(pools)
    return [
        "## Prefill and decode apart, against public runs", "",
        *told(f"""{len(pools)} runs of gpt-oss-120b on H200 (SGLang, TP 2 a worker, NIXL) with 1 to
            3 prefill and decode workers in closed loop. Median of absolute errors (median error).
            The runs are of another engine than the replay follows, their answers end early with
            unknown spread (the mean is used for all), and the network is not stated (50 GB/s a GPU
            and 5 ms are assumed)."""),
        *pool_lines(pools), "",
        *told(f"""Of {full} workloads that were run in several ratios on eight GPUs the ratio with
            the highest measured throughput is predicted in {hits}. So `sieve fleet disaggregate` is
            an estimate to choose what to measure by, not a forecast."""),
    ]  # fmt: skip


def speed_section() -> list[str]:
    """Return how long a routed fleet and a replica search take, CPU time on one core."""
    lines = [
        "## Speed", "",
        *told("""CPU time of one process, the best of five, after compiling; request-iterations are
            requests scheduled, summed over iterations."""),
        "| what | mean batch | CPU s | million request-iterations/s |", "|---|---|---|---|",
    ]  # fmt: skip
    for rate in (40, 64, 96):
        traffic = CHAT["traffic"] | {"requests": 20000, "rate_per_s": rate}
        _, (plain,), _ = load_shapes(CHAT | {"traffic": traffic}, [CHAT_SHAPE])
        shape = replace(plain, shared=replace(plain.shared, routing="least_loaded"))
        requests = shape.context.requests
        spent_s, result = best_of_five(lambda s=shape, r=requests: s.replay(r, 8))
        lines.append(
            f"| 8 replicas, least loaded, 20,000 `chat` requests at {rate}/s | "
            f"{result.num_request_steps / result.num_steps:.0f} | {spent_s:.3f} | "
            f"{result.num_request_steps / spent_s / 1e6:.0f} |"
        )
    traffic = CHAT["traffic"] | {"requests": 5000, "rate_per_s": 60}
    spec = CHAT | {"traffic": traffic}
    spent_s, found = best_of_five(lambda: replica_search(spec, CHAT_SHAPE, most=64))
    tried = len(found["rows"])
    lines.append(
        f"| search of 1 to 64 replicas, 5,000 requests at 60/s: {found['fewest_replicas']} found, "
        f"{tried} counts replayed, each also at saturation | - | {spent_s:.2f} | - |"
    )
    return [*lines, ""]


def best_of_five(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the least CPU time of five calls in seconds, and the last result."""
    call()
    spent, result = [], None
    for _ in range(5):
        started = time.process_time()
        result = call()
        spent.append(time.process_time() - started)
    return min(spent), result


def agentic_words(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """Return what the agentic table shows, from its own figures."""
    first, last = rows[0], rows[-1]
    peak = max(rows, key=lambda row: row["efficiency"])
    return told(f"""One replica finds {first["cached"]:.0%} of the prompt tokens in its cache, eight
        find {last["cached"]:.0%}: a session's history stays only where all sessions of a replica
        fit. So efficiency has its peak at {peak["replicas"]:.0f} ({peak["efficiency"]:.0%}); with 8
        it is {last["efficiency"]:.0%}, as think time and not the engines sets the pace of a fixed
        number of users. One engine times N would have missed both.""")


def main() -> None:
    """Write the page."""
    if "SIEVE_DATA" not in os.environ:
        sys.exit("set SIEVE_DATA to the folder with the public data sets")
    started = time.perf_counter()
    text = page(Path(os.environ["SIEVE_DATA"]))
    Path(sys.argv[1] if len(sys.argv) > 1 else OUT).write_text(text)
    sys.stderr.write(f"written in {time.perf_counter() - started:.0f} s\n")


if __name__ == "__main__":
    main()

"""The terminal view of one replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from sieve.report.format import (
    count,
    number,
    plain,
    reason_sentence,
    seconds,
    share,
    whole_share,
)
from sieve.report.terminal import console

_METRICS: Final = (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("e2e", "E2E"))
_STATISTICS: Final = ("mean", "p50", "p90", "p95", "p99")
MAX_WINDOWS: Final = 12


def _engines(engine: Mapping[str, Any]) -> str:
    ranks = engine.get("data_parallel_size", 1)
    return f"{engine['replicas']}" if ranks == 1 else f"{engine['replicas']} x {ranks}"


def print_replay(
    data: Mapping[str, Any], *, steps: Path | None = None, requests: Path | None = None
) -> None:
    """Print a replay: latencies, load, windows, and where the tables were written."""
    out = console()
    metrics, engine = data["metrics"], data["engine"]
    out.print(data["candidate_id"], style="bold", markup=False)
    out.print(
        f"{count(data['traffic']['num_requests'])} requests of {data['traffic']['source']} at load "
        f"{data['level']:g}, {_engines(engine)} x {engine['num_gpu_blocks']:,} blocks of "
        f"{engine['block_size']} tokens, {_switches(data)}",
        markup=False,
    )
    if "num_idle_steps" in engine:
        out.print(
            f"{count(engine['data_parallel_size'])} data-parallel ranks a replica step together: "
            f"{count(metrics['num_steps'])} steps with work, "
            f"{count(engine['num_idle_steps'])} run along without."
        )
    if data["warm_up_s"]:
        out.print(
            f"The first {data['warm_up_s']:g} s are not counted: {count(data['num_counted'])} "
            "requests remain (gaps between tokens are those of the whole replay)."
        )
    if metrics["status"]:
        out.print(reason_sentence(metrics["status"]), style="red", markup=False)
    out.print(_latencies(metrics))
    out.print(_load(metrics))
    _print_windows(out, data["windows"], engine["num_gpu_blocks"])
    if "disciplines" in data:
        out.print(_disciplines(data["disciplines"]))
        out.print(
            "shortest_first knows each answer's length beforehand; a service has to guess it."
        )
    for path, what in ((steps, "Iterations"), (requests, "Requests")):
        if path is not None:
            out.print(f"{what}  {path}", markup=False)
    if steps is None and "num_idle_steps" not in engine:
        out.print("Next    --steps FILE.parquet keeps every iteration", markup=False)


def _switches(data: Mapping[str, Any]) -> str:
    engine = data["engine"]
    words = [data["discipline"]]
    words.append("asynchronous" if engine["async_scheduling"] else "synchronous")
    words.append("prefix cache" if engine["enable_prefix_caching"] else "no prefix cache")
    return ", ".join(words)


def _latencies(metrics: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, title="Latency", title_justify="left")
    table.add_column("")
    for name in _STATISTICS:
        table.add_column(name, justify="right")
    table.add_column("p99, low to high", justify="right")
    for key, name in _METRICS:
        ends = f"{seconds(metrics[f'{key}_p99_low_s'])} - {seconds(metrics[f'{key}_p99_high_s'])}"
        table.add_row(name, *(seconds(metrics[f"{key}_{s}_s"]) for s in _STATISTICS), ends)
    return table


def _load(metrics: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    pairs = (
        ("output tokens/s", plain(metrics["output_tokens_per_s"])),
        ("requests/s", plain(metrics["requests_per_s"])),
        ("goodput, requests/s", plain(metrics["goodput_per_s"])),
        ("SLO attainment", whole_share(metrics["slo_attainment"])),
        ("mean batch", plain(metrics["mean_batch"])),
        ("largest batch", count(metrics["peak_batch"])),
        ("most cache used", whole_share(metrics["peak_kv_usage"])),
        ("prompt tokens from cache", whole_share(metrics["cached_share"])),
        ("preemptions", count(metrics["num_preemptions"])),
        ("iterations", count(metrics["num_steps"])),
        ("evidence", str(metrics["evidence"])),
        ("makespan", seconds(metrics["makespan_s"])),
    )
    for i in range(0, len(pairs), 2):
        table.add_row(*pairs[i], "  ", *pairs[i + 1])
    return table


def _print_windows(out: Console, windows: Sequence[Mapping[str, Any]], blocks: int) -> None:
    table = Table(box=None, pad_edge=False, title="Over time", title_justify="left")
    names = ("from", "req/s", "tok/s", "TTFT p50", "p99", "TPOT p99", "SLO", "batch", "queue", "KV")
    for name in names:
        table.add_column(name, justify="right")
    step = -(-len(windows) // MAX_WINDOWS) if windows else 1
    for row in windows[::step]:
        used = row["mean_blocks"]
        table.add_row(
            seconds(row["start_s"]),
            plain(row["requests_per_s"]),
            plain(row["output_tokens_per_s"]),
            _time(row["ttft_p50_s"]),
            _time(row["ttft_p99_s"]),
            _time(row["tpot_p99_s"]),
            "-" if row["slo_attainment"] is None else whole_share(row["slo_attainment"]),
            _mean(row["mean_running"]),
            _mean(row["mean_waiting"]),
            "-" if used is None else share(used / blocks),
        )
    out.print(table)
    if step > 1:
        out.print(f"one in {step} of {len(windows)} windows; all of them in --json")


def _time(value: float | None) -> str:
    return "-" if value is None else seconds(value)


def _mean(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _disciplines(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, title="Disciplines", title_justify="left")
    table.add_column("")
    for name in ("TTFT mean", "p99", "TPOT p99", "E2E mean", "p99", "tokens/s"):
        table.add_column(name, justify="right")
    for row in rows:
        keys = ("ttft_mean_s", "ttft_p99_s", "tpot_p99_s", "e2e_mean_s", "e2e_p99_s")
        times = ["-" if row[k] != row[k] else seconds(row[k]) for k in keys]
        table.add_row(row["discipline"], *times, plain(row["output_tokens_per_s"]))
    return table


def print_scaling(data: Mapping[str, Any]) -> None:
    """Print the search over replicas: the fewest that clear, and what each count does."""
    out = console()
    out.print(data["shape"], style="bold", markup=False)
    table = Table(box=None, pad_edge=False)
    names = ("replicas", "GPUs", "verdict", "TTFT p99", "TPOT p99", "tokens/s", "at most", "eff.")
    for name in names:
        table.add_column(name, justify="left" if name == "verdict" else "right")
    for row in data["rows"]:
        table.add_row(
            count(row["replicas"]),
            row["verdict"].replace("_", " "),
            _known(row["ttft_p99_s"]),
            _known(row["tpot_p99_s"]),
            plain(row["output_tokens_per_s"]),
            plain(row["saturation_tokens_per_s"]),
            "-" if row["efficiency"] is None else whole_share(row["efficiency"]),
        )
    out.print(table)
    fewest, point = data["fewest_replicas"], data["fewest_point_only"]
    if fewest is not None:
        gpus = fewest * data["gpus_per_replica"]
        out.print(
            f"Fewest that clear every objective: {count(fewest)} replicas, {count(gpus)} GPUs."
        )
    elif point is not None:
        out.print(f"None clears; {count(point)} replicas hold at the middle of the intervals.")
    else:
        out.print("None of these counts meets every objective.")
    out.print(
        "at most: all requests at once, the end of the last ones included; eff.: that over as many "
        f"times one replica's. Requests are routed {data['routing'].replace('_', ' ')}."
    )


def _known(value: float | None) -> str:
    return "-" if number(value) is None else seconds(value)


def print_pools(data: Mapping[str, Any]) -> None:
    """Print two pools by split beside one pool of as many GPUs."""
    out = console()
    table = Table(box=None, pad_edge=False)
    names = ("", "split", "verdict", "TTFT p99", "TPOT p99", "E2E p99", "SLO", "tok/s")
    for name in names:
        side: Any = "left" if name in {"", "verdict"} else "right"
        table.add_column(name, justify=side, no_wrap=True)
    for row in data["rows"]:
        table.add_row(
            row["layout"],
            "-" if row["split"] is None else count(row["split"]),
            row["verdict"].replace("_", " "),
            *(_known(row[f"{m}_p99_s"]) for m in ("ttft", "tpot", "e2e")),
            whole_share(row["slo_attainment"]),
            plain(row["output_tokens_per_s"]),
        )
        for name in ("short", "long"):
            if name in row:
                part = row[name]
                table.add_row(
                    f"  {name}, {count(part['num_requests'])}",
                    "",
                    "",
                    *(_known(part[f"{m}_p99_s"]) for m in ("ttft", "tpot", "e2e")),
                    whole_share(part["slo_attainment"]),
                    plain(part["output_tokens_per_s"]),
                )
    out.print(table)
    if data["best_split"] is None:
        out.print("No split can be served.")
        return
    words = "better" if data["better"] else "no better"
    out.print(
        f"Best split: {data['by']} {count(data['best_split'])}; {words} than one pool, by verdict "
        "and by the share of requests within the objectives."
    )
    if data["by"] in {"total_tokens", "output_tokens"}:
        out.print("The router is taken to know each answer's length.")

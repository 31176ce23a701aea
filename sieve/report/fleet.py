"""The terminal views of `sieve fleet`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from sieve.report.format import count, number, plain, seconds, whole_share
from sieve.report.terminal import console
from sieve.units import SECONDS_PER_HOUR

Row = Mapping[str, Any]
_BINDS = {
    "kv_cache": "its KV cache is full",
    "max_num_seqs": "max_num_seqs is reached",
    "max_num_batched_tokens": "its token budget is filled at its peak",
}


def print_size(data: Row) -> None:
    """Print the fewest replicas of each shape, and the best by each yardstick."""
    out = console()
    _print_rows(out, data["rows"], with_headroom=False)
    _print_yardsticks(out, data)


def print_compare(data: Row) -> None:
    """Print all shapes on equally many GPUs."""
    out = console()
    out.print(f"{count(data['num_gpus'])} GPUs each; load: the highest at which it clears.")
    _print_rows(out, data["rows"], with_headroom=True)
    _print_yardsticks(out, data)


def _print_rows(out: Console, rows: Sequence[Row], *, with_headroom: bool) -> None:
    """Print one line of figures a row below its id, so that no id is broken."""
    for row in rows:
        for name in row["candidate_ids"]:
            out.print(name, soft_wrap=True, markup=False)
        parts = [
            f"{count(row['num_gpus'])} GPUs",
            f"{_usd(row['usd_per_hour'])} USD/h",
            row["verdict"].replace("_", " "),
            f"TTFT p99 {_seconds(row['ttft_p99_s']['mid'])}",
            f"TPOT p99 {_seconds(row['tpot_p99_s']['mid'])}",
        ]
        if with_headroom:
            parts.append(f"load {_level(row['headroom'])}")
        else:
            parts.append(f"{plain(row['output_tokens_per_s_per_gpu'])} tokens/s/GPU")
        out.print("  " + ", ".join(parts), markup=False)


def _print_yardsticks(out: Console, data: Row) -> None:
    named = (("fewest_gpus", "Fewest GPUs"), ("cheapest", "Cheapest"), ("best_per_gpu", "Per GPU"))
    for key, words in named:
        out.print(f"{words:<12}{data[key] or 'none'}", soft_wrap=True, markup=False)
    shown = len(data["rows"])
    if shown < data["num_shapes"]:
        out.print(
            f"{shown} of {count(data['num_shapes'])} shapes that can run were tried (--shapes)."
        )


def print_levels(data: Row) -> None:
    """Print the winner at each load level and what happens between."""
    out = console()
    for row in data["levels"]:
        if row["candidate_id"] is None:
            out.print(f"Load {row['level']:g}: no replayed candidate keeps up.")
            continue
        out.print(
            f"Load {row['level']:g}: {row['candidate_id']} ({row['verdict'].replace('_', ' ')})",
            soft_wrap=True, markup=False,
        )  # fmt: skip
    for change in data["changes"]:
        used = number(change["used"])
        words = f"{change['limit']} at {'unknown' if used is None else whole_share(used)} of it"
        if change["binds"]:
            words += f", {_BINDS[change['binds']]}"
        why = {
            "limit": "gives way",
            "objective": "is still within the objectives but no longer the best",
            "neither_holds": "misses, as the next does",
        }[change["because"]]
        out.print(f"From load {change['level']:.2f} {change['from_id']} {why}: {words}.",
                  markup=False)  # fmt: skip
    if not data["changes"]:
        out.print("One winner at every load level.")


def print_mix(data: Row) -> None:
    """Print the best mix, and the best fleet of each GPU type."""
    out = console()
    budget = data["budget_usd_per_hour"]
    named = [("Mix", data["mix"]), *data["single"].items()]
    for name, row in named:
        if row is None:
            out.print(f"{name}: none within {count(data['max_gpus'])} GPUs", markup=False)
            continue
        out.print(
            f"{name}: {_usd(row['usd_per_hour'])} USD/h, {count(row['num_gpus'])} GPUs, load "
            f"{_level(row['served_level'])}, {row['verdict'].replace('_', ' ')}", markup=False,
        )  # fmt: skip
        for pool in row["pools"]:
            out.print(
                f"  {whole_share(pool['share'])} to {pool['candidate_id']}",
                soft_wrap=True, markup=False,
            )  # fmt: skip
    if data["gain"] is None:
        out.print("The gain of the mix is unknown: the mix or every single type misses.")
    elif budget is None:
        out.print(f"The mix saves {data['gain']:.1%} of the cost of {data['best_single']} alone.")
    else:
        out.print(f"The mix takes {data['gain']:.1%} more load than {data['best_single']} alone.")


def print_diurnal(data: Row) -> None:
    """Print the windows and what each policy costs and serves."""
    out = console()
    out.print(data["shape"], style="bold", markup=False)
    table = _table("from", "load", "requests", "fewest", "static", "scheduled")
    for row in data["windows"]:
        table.add_row(
            f"{row['start_s'] / SECONDS_PER_HOUR:g} h", f"{row['level']:.2f}",
            count(row["num_requests"]), count(row["fewest"]), count(row["static"]),
            count(row["scheduled"]),
        )  # fmt: skip
    out.print(table)
    names = ("policy", "GPU-hours", "USD/month", "TTFT p99", "TPOT p99", "outside")
    table = _table(*names, left=("policy",))
    for name, row in data["policies"].items():
        table.add_row(
            name, f"{row['gpu_hours']:,.1f}", _usd(row["usd_per_month"]),
            _seconds(row["ttft_p99_s"]), _seconds(row["tpot_p99_s"]), count(row["num_violations"]),
        )  # fmt: skip
    out.print(table)
    out.print(
        f"scheduled saves {data['saving']['scheduled']:.1%} and ahead {data['saving']['ahead']:.1%}"
        f" of the static cost; outside: requests that miss a limit. Start-up {data['start_up_s']:g}"
        " s, paid; ahead asks that much earlier."
    )
    for text in data["assumptions"]:
        out.print(f"Assumed: {text}.", markup=False)


def print_disaggregate(data: Row) -> None:
    """Print the ratios of prefill to decode engines beside aggregated fleets."""
    out = console()
    out.print(
        f"{count(data['num_gpus'])} GPUs, link {data['link_gbs_per_gpu']:g} GB/s a GPU; load: the "
        "highest at which it clears. An estimate."
    )
    for row in [*data["rows"][:5], *data["aggregated"][:3]]:
        for name in row["candidate_ids"]:
            out.print(name, soft_wrap=True, markup=False)
        parts = [
            f"load {_level(row['headroom'])}", row["verdict"].replace("_", " "),
            f"TTFT p99 {_seconds(row['ttft_p99_s']['mid'])}",
            f"TPOT p99 {_seconds(row['tpot_p99_s']['mid'])} at load 1",
        ]  # fmt: skip
        out.print("  " + ", ".join(parts), markup=False)
    more = len(data["rows"]) - 5
    if more > 0:
        out.print(f"{more} more ratios in --json")
    if data["gain"] is None:
        out.print("Against engines that do both: unknown, one side never clears.")
    else:
        word = "more" if data["gain"] >= 0 else "less"
        out.print(f"Prefill and decode apart take {abs(data['gain']):.1%} {word} load.")
    for text in data["assumptions"]:
        out.print(f"Assumed: {text}.", markup=False)


def _table(*names: str, left: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    return table


def _usd(value: float | None) -> str:
    return "unpriced" if value is None else f"{value:,.2f}"


def _level(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _seconds(value: float | None) -> str:
    return "-" if number(value) is None else seconds(value)

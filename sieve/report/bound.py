"""The ceilings of `sieve bound` for the terminal; sizes in GB of 1e9 bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sieve.report.format import UNKNOWN, count, plain, seconds
from sieve.units import GB, TERA

_STATES: Final = {
    "does_not_fit": "The weights and the overhead exceed the memory: nothing can run.",
    "resident_only": "The weights fit, but not one session of this context beside them.",
    "no_floor": "Sessions fit, but no batch gives each of them the floor.",
    "floor_fit": "Sessions fit, and this many at most get the floor.",
}
_BEST: Final = {
    "does_not_fit": "the model does not fit",
    "resident_only": "no prompt fits beside the weights",
    "no_batch": "even one prompt takes longer than the TTFT budget",
    "unavailable": "unavailable: the arithmetic rate of this GPU is not known",
}
_PASSED: Final = {True: "[green]passed[/]", False: "[red]failed[/]", None: "[dim]not reached[/]"}
_UNITS: Final = {"bytes": "GB"}

Row = tuple[str, str, str]


def print_bound(result: Mapping[str, Any]) -> None:
    """Print gates, ceilings with their kinds, and the assumptions they hold under."""
    out = Console(highlight=False, soft_wrap=False)
    gpus = f"{result['num_gpus']} × {result['gpu']}"
    out.print(f"{escape(result['model'])} on {escape(gpus)}", style="bold")
    given = result["assumptions"]
    _print_decode(out, result["decode"], given)
    if "speculative" in result:
        _print_speculative(out, result["speculative"])
    _print_prefill(out, result["prefill"])
    _print_assumptions(out, given)


def _print_decode(out: Console, found: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    out.print(
        f"\nDecode: {count(given['context_tokens'])} tokens reserved for a session, "
        f"{count(given['read_context_tokens'])} read a step"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("gate")
    table.add_column("needs", justify="right")
    table.add_column("has", justify="right")
    table.add_column("")
    for gate in found["gates"]:
        needs, has = (_amount(gate[end], gate["unit"]) for end in ("needs", "has"))
        table.add_row(f"{gate['gate']}: {gate['of']}", needs, has, _PASSED[gate["passed"]])
    out.print(table)
    out.print(_STATES[found["state"]])
    kinds = found["kinds"]
    power, aggregate = found["memory_power_tokens_per_s"], found["aggregate_tokens_per_s"]
    rows: list[Row] = [
        ("sessions that fit (b_mem)", count(found["b_mem"]), kinds["b_mem"]),
        ("sessions by rate (b_rate)", _or_none(found, "b_rate"), kinds["b_rate"]),
        (
            "one session",
            _rate(found["single_tokens_per_s"]),
            kinds["single_tokens_per_s"],
        ),
        ("all sessions: memory-power", _rate(power), kinds["memory_power_tokens_per_s"]),
        ("all sessions: KV-aware, floor met", _rate(aggregate), kinds["aggregate_tokens_per_s"]),
        ("  at batch (b*)", count(found["b_star"]), kinds["b_star"]),
        (
            "  each session",
            _rate(found["per_session_tokens_per_s"]),
            kinds["per_session_tokens_per_s"],
        ),
    ]
    out.print(_ceilings([row for row in rows if row[1] != UNKNOWN]))
    if found["batches"]:
        out.print(_batches(found["batches"], kinds["batches"]))


def _or_none(found: Mapping[str, Any], key: str) -> str:
    """Return a count that is unlimited where a reached gate left it open."""
    if found[key] is None and found["state"] in {"no_floor", "floor_fit"}:
        return "no limit"
    return count(found[key])


def _batches(rows: Sequence[Mapping[str, Any]], kind: str) -> Table:
    table = Table(title=f"Given batches ({kind})", title_justify="left", box=None, pad_edge=False)
    for name in ("batch", "all sessions", "each session"):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in rows:
        words = [
            "fits" if row["fits"] else "does not fit",
            "meets the floor" if row["meets_floor"] else "below the floor",
        ]
        table.add_row(
            count(row["batch"]),
            _rate(row["aggregate_tokens_per_s"]),
            _rate(row["per_session_tokens_per_s"]),
            ", ".join(words),
        )
    return table


def _print_speculative(out: Console, found: Mapping[str, Any]) -> None:
    draft = "no model" if found["draft"] is None else found["draft"]
    out.print(
        f"\nSpeculative decoding: {found['gamma']} tokens drafted by {escape(draft)}, acceptance "
        f"{found['alpha']:g}, {plain(found['rho'])} tokens a pass"
    )
    table = Table(
        title=f"By batch ({found['kinds']['batches']})",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for name in ("batch", "memory", "compute", "each session"):
        table.add_column(name, justify="right")
    table.add_column("")
    for row in found["batches"]:
        table.add_row(
            count(row["batch"]),
            _rate(row["memory_tokens_per_s"]),
            "unavailable"
            if row["compute_tokens_per_s"] is None
            else _rate(row["compute_tokens_per_s"]),
            _rate(row["per_session_tokens_per_s"]),
            row["state"].replace("_", " "),
        )
    out.print(table)


def _print_prefill(out: Console, found: Mapping[str, Any]) -> None:
    out.print(f"\nPrefill: a prompt of {count(found['prompt_tokens'])} tokens")
    kinds, one = found["kinds"], found["one_prompt"]
    rows: list[Row] = [
        ("one prompt: by memory", _rate(one["memory_tokens_per_s"]), kinds["memory_tokens_per_s"]),
    ]
    if found["limit"] == "unavailable":
        rows.append(("one prompt: by compute", "unavailable", ""))
    else:
        rows += [
            (
                "one prompt: by compute",
                _rate(one["compute_tokens_per_s"]),
                kinds["compute_tokens_per_s"],
            ),
            ("  so at least", seconds(one["time_s"]), kinds["time_s"]),
        ]
    for name, key in (
        ("any batch that fits: memory-power", "memory_power_tokens_per_s"),
        ("any batch: matrices alone", "linear_only_tokens_per_s"),
    ):
        if found[key] is not None:
            rows.append((name, _rate(found[key]), kinds[key]))
    if found["crossover_tokens"] is not None:
        text = f"{count(found['crossover_tokens'])} tokens"
        rows.append(("memory-bound below", text, kinds["crossover_tokens"]))
    out.print(_ceilings(rows))
    best = found["best"]
    budget = "" if found["ttft_s"] is None else f" within {seconds(found['ttft_s'])}"
    if best["state"] != "ok":
        out.print(f"Best batch{budget}: none, {_BEST[best['state']]}")
        return
    prompts = f"{count(best['batch'])} prompt{'' if best['batch'] == 1 else 's'}"
    out.print(
        f"Best batch{budget}: {prompts} at once, {_rate(best['rate_tokens_per_s'])}, "
        f"{seconds(best['time_s'])}, limited by {best['limit']} ({kinds['best']})"
    )


def _print_assumptions(out: Console, given: Mapping[str, Any]) -> None:
    out.print("\nAll of this holds under these assumptions:")
    linear, attention = (
        _mode(given[f"{part}_mode"], given[f"{part}_flops_per_s"])
        for part in ("linear", "attention")
    )
    chunk = given["chunk_tokens"]
    lines = (
        f"memory overhead {_amount(given['overhead_bytes_per_gpu'], 'bytes')} a GPU, workspace 0",
        f"bandwidth {plain(given['bandwidth_bytes_per_s'] / 1e12)} TB/s, {given['rate_source']}",
        f"floor {given['floor_tokens_per_s']:g} tokens/s a session, rho {given['rho']:g}",
        f"weights {given['weight_dtype']}, {given['weight_bytes_per_param']:g} bytes each",
        f"cache {given['kv_cache_dtype']}, {count(given['kv_bytes_per_token'])} bytes a token, "
        f"{given['kv_adapter']} adapter",
        f"expert traffic: {given['expert_traffic']}",
        f"prefill {chunk if chunk == 'one-shot' else f'in chunks of {count(chunk)} tokens'}, "
        f"matrices {linear}, attention {attention}",
        f"cache gate {given['kv_gate']}",
        *given["notes"],
    )
    for line in lines:
        text = fill(line, out.width - 1, initial_indent="  - ", subsequent_indent="    ")
        out.print(text, markup=False)


def _mode(mode: str, rate: float | None) -> str:
    return mode if rate is None else f"{mode} at {plain(rate / TERA)} TFLOP/s"


def _ceilings(rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_column("", style="dim")
    for name, value, kind in rows:
        table.add_row(name, value, kind)
    return table


def _rate(value: float | None) -> str:
    return UNKNOWN if value is None else f"{plain(value)} tokens/s"


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return UNKNOWN
    return f"{plain(value / GB)} {_UNITS[unit]}" if unit in _UNITS else f"{plain(value)} {unit}"

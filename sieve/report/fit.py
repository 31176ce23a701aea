"""Terminal pages of `sieve fit` and `sieve check`."""

from __future__ import annotations

from typing import Any, Final

from rich.markup import escape
from rich.table import Table

from sieve.fit_of import Check, Fit, RuleResult
from sieve.report.format import count, plain, reason_sentence
from sieve.report.terminal import console
from sieve.units import GIB, MIB

_REASONS: Final = {
    "invalid": "the engine refuses this deployment",
    "weights_overflow": "the weights alone exceed the budget",
    "no_page": "no room for one usable block of cache",
    "max_model_len": "the cache cannot hold one request of max_model_len",
}


def print_fit(result: Fit) -> None:
    """Print the ledger, the verdict, what the cache holds and what would help."""
    out = console()
    c = result.configuration
    out.print(
        f"[bold]{escape(c.model.name)}[/] on {escape(_shape(c))}, {escape(c.engine.requested)}"
    )
    out.print(escape(_knobs(c)), style="dim")
    out.print(_ledger_table(result))
    margin = abs(result.margin_bytes) / MIB
    if result.fits:
        out.print(f"[green]fits[/], {margin:,.0f} MiB to spare beyond one request of full length")
    else:
        missing = "" if result.margin_bytes >= 0 else f", {margin:,.0f} MiB are missing"
        out.print(f"[red]does not fit[/]: {_REASONS[result.reason]}{missing}")
    for rule in result.check.rules:
        if not rule.ok:
            _print_rule(out, rule)
    if result.num_blocks:
        out.print(_holdings(result))
    for words in result.remedies:
        out.print(f"  would fit with {escape(words)}")
    _print_notes(out, result.notes)


def print_check(result: Check) -> None:
    """Print every rule, and for broken ones the numbers and the legal values."""
    out = console()
    c = result.configuration
    out.print(
        f"[bold]{escape(c.model.name)}[/] on {escape(_shape(c))}, {escape(c.engine.requested)}"
    )
    for rule in result.rules:
        if rule.ok:
            out.print(f"  [green]ok[/]    {rule.rule}")
        else:
            _print_rule(out, rule)
    out.print("[green]valid[/]" if result.ok else "[red]not valid[/]")
    _print_notes(out, result.notes)


def print_memory_check(report: dict[str, Any]) -> None:
    """Print the summary and the rows of `sieve verify memory`."""
    out = console()
    table = Table(box=None, pad_edge=False)
    for name in ("case", "verdict", "logged"):
        table.add_column(name)
    for name in ("margin MiB", "weights", "activation", "non-torch", "KV GiB", "KV tokens"):
        table.add_column(name, justify="right")
    for row in report["rows"]:
        table.add_row(
            escape(row["case_id"]), row["verdict"], row["expected"], f"{row['margin_mib']:,.0f}",
            _pair(row, "weights_gib"), _pair(row, "activation_gib"), _pair(row, "non_torch_gib"),
            _pair(row, "available_kv_gib"), _pair(row, "kv_tokens"),
        )  # fmt: skip
    out.print(table)
    out.print("Figures read predicted / logged, in GiB per GPU.")
    for skipped in report["skipped"]:
        out.print(f"  skipped {escape(str(skipped['row']))}: {escape(skipped['reason'])}")
    for column in report["unread_columns"]:
        out.print(f"  column {escape(column)} is not known and was not read")
    for name, value in report["summary"].items():
        shown = "unknown" if value is None else plain(value) if isinstance(value, float) else value
        out.print(f"  {name} {shown}")


def _pair(row: dict[str, Any], name: str) -> str:
    measured, predicted = row[f"{name}_measured"], row[f"{name}_predicted"]
    if measured is None:
        return "-"
    if name == "kv_tokens":
        return f"{predicted:,.0f} / {measured:,.0f}"
    return f"{predicted:.2f} / {measured:.2f}"


def _shape(c: Any) -> str:
    gpus = c.tp * c.pp * c.dp
    parts = [
        f"tp {c.tp}",
        *([f"pp {c.pp}"] if c.pp > 1 else []),
        *([f"dp {c.dp}"] if c.dp > 1 else []),
        *([f"ep {c.ep}"] if c.ep > 1 else []),
        *([f"dcp {c.dcp}"] if c.dcp > 1 else []),
    ]
    return f"{gpus} x {c.gpu.name} ({', '.join(parts)})"


def _knobs(c: Any) -> str:
    def shown(name: str) -> str:
        mark = " (default)" if name in c.defaulted else ""
        value = getattr(c, name)
        shown = count(value) if isinstance(value, int) else f"{value:g}"
        return f"{name} {shown}{mark}"

    names = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization")
    text = ", ".join(shown(name) for name in names)
    return f"weights {c.weights.name}, cache {c.kv_cache_dtype}, {text}"


def _ledger_table(result: Fit) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("per GPU")
    for place, stage in enumerate(result.stages):
        mark = " (decides)" if place == result.decides and len(result.stages) > 1 else ""
        title = f"stage {stage.stage}{mark}" if len(result.stages) > 1 else "GiB"
        table.add_column(title, justify="right")

    def row(name: str, values: list[float]) -> None:
        table.add_row(name, *(f"{value / GIB:,.2f}" for value in values))

    stages = result.stages
    row("reported by the card", [result.total_bytes] * len(stages))
    row("budget (utilisation x reported)", [result.budget_bytes] * len(stages))
    row("- weights", [stage.weight_bytes for stage in stages])
    row("- activation peak", [stage.activation_bytes for stage in stages])
    row("- non-torch", [stage.non_torch_bytes for stage in stages])
    inside = "- graphs" if result.graphs_inside else "  graphs (outside the budget)"
    row(inside, [stage.graph_bytes for stage in stages])
    row("= left for the KV cache", [stage.kv_bytes for stage in stages])
    return table


def _holdings(result: Fit) -> str:
    lines = [
        f"cache: {count(result.num_blocks)} blocks of {result.block_tokens} tokens, "
        f"{count(result.kv_tokens)} tokens as the log prints them, "
        f"{plain(result.token_bytes / 1024)} KiB for a further token",
        f"requests of {count(result.configuration.max_model_len)} tokens at once: "
        f"{result.concurrency_engine:,.2f} by the engine's blocks, "
        f"{result.concurrency_by_division:,.2f} by tokens of the pool over length, "
        f"{result.concurrency_scheduler} by max_num_seqs",
        f"longest max_model_len that fits: {count(result.longest_len)}",
    ]
    traffic = result.traffic
    if traffic is not None:
        lines.append(
            f"on traffic of {plain(traffic.isl)} + {plain(traffic.osl)} tokens: "
            f"{traffic.expected:,.1f} requests at once, limited by "
            f"{'the cache' if traffic.limited_by == 'cache' else 'max_num_seqs'} "
            f"(cache {traffic.by_cache:,.1f}, {traffic.by_cache_at_end:,.1f} if all stand at their "
            "last token)"
        )
    return "\n".join(lines)


def _print_rule(out: Any, rule: RuleResult) -> None:
    sentence = reason_sentence(rule.rule)
    observed, limit = _exact(rule.observed), _exact(rule.limit)
    out.print(f"  [red]fails[/] {rule.rule}: {escape(sentence)}")
    out.print(f"        {observed} against {limit} ({escape(rule.unit)})")
    out.print(f"        legal: {escape(rule.legal)}")


def _exact(value: float | None) -> str:
    """Return a number as it is, for comparisons that are about divisors."""
    return "unknown" if value is None else f"{value:,.10g}"


def _print_notes(out: Any, notes: tuple[str, ...]) -> None:
    for note in notes:
        out.print(f"  note: {escape(note)}", style="dim")


def print_start_up(document: dict[str, Any], *, into: str, num_logs: int) -> None:
    """Print one start-up beside its prediction, and where its corrections went.

    Args:
        document: of `sieve calibrate`.
        into: the calibration file, "" if nothing was written.
        num_logs: logs of the same deployment that the file now holds.
    """
    out = console()
    c = document["configuration"]
    version = document["version"] or "no banner"
    out.print(
        f"[bold]{escape(document['file'])}[/]: vLLM {escape(version)}, read with the profile "
        f"{escape(document['profile'])}"
    )
    out.print(
        f"{escape(document['model'])} on {escape(document['gpu'])}, tp {c['tp']}, "
        f"max_model_len {count(c['max_model_len'])}, max_num_seqs {count(c['max_num_seqs'])}"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("per GPU")
    for name in ("log", "predicted", "log - predicted"):
        table.add_column(name, justify="right")
    for term in document["terms"]:
        size = GIB if term["term"].endswith("_bytes") else 1
        name = _TERMS[term["term"]]
        if term["measured"] is None:
            table.add_row(name, "not stated", _sized(term["predicted"], size), "")
            continue
        table.add_row(
            name, _sized(term["measured"], size), _sized(term["predicted"], size),
            f"{term['difference'] / size:+,.2f}",
        )  # fmt: skip
    out.print(table)
    out.print(f"the log: {document['outcome']}; predicted: {document['predicted_outcome']}")
    if into:
        logs = f"{num_logs} log{'s' if num_logs > 1 else ''}"
        out.print(f"corrections merged into {escape(into)}: {logs} of this deployment there")
    elif document["corrections"]:
        out.print("nothing written; --into FILE keeps the corrections")
    _print_notes(out, tuple(document["notes"]))


_TERMS: Final = {
    "budget_bytes": "budget, GiB",
    "weight_bytes": "- weights",
    "activation_bytes": "- activation peak",
    "non_torch_bytes": "- non-torch",
    "graph_bytes": "  graphs",
    "reserved_bytes": "  all that is reserved",
    "kv_bytes": "= left for the KV cache",
    "kv_tokens": "cache, tokens",
    "concurrency": "requests of full length",
}


def _sized(value: float, size: float) -> str:
    return f"{value / size:,.2f}"

"""Tables and sentences for the terminal; they fit 80 columns and lose their colour when piped."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from sieve.frames import UNSTABLE_BELOW
from sieve.report.answer import (
    answer_sentence,
    audit_rows,
    fix_words,
    miss_words,
    model_rows,
    settle_sentence,
)
from sieve.report.format import (
    class_words,
    count,
    data_parallel_ranks,
    deployment,
    duration,
    gib,
    limit_text,
    plain,
    quantity,
    reason_sentence,
    seconds,
    share,
)
from sieve.report.objectives import check, limits
from sieve.report.rejection import remedy

MIN_WIDTH: Final = 80
MAX_ROWS: Final = 10
_BEFORE_REPLAY: Final = 4
_VERDICT_STYLE: Final = {"clears": "green", "point_only": "yellow", "misses": "red"}


class _Console(Console):
    """A console that goes on quietly when its reader went away (`| head`)."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def console() -> Console:
    """Return a console on stdout."""
    # Narrower than 80 columns a table would cut names and figures; the terminal may wrap instead.
    width = max(shutil.get_terminal_size().columns, MIN_WIDTH)
    return _Console(highlight=False, soft_wrap=False, width=width)


class _Rate(TextColumn):
    """Replays per second, where there are any."""

    def __init__(self) -> None:
        super().__init__("")

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{count(round(task.speed))}/s")


@contextmanager
def progress_bar(
    compiles_first: Callable[[], bool] = lambda: False,
) -> Iterator[
    tuple[
        Callable[[Mapping[str, Any]], None],
        Callable[[int, int], None],
        Callable[[int, int], None],
    ]
]:
    """Yield callbacks that draw stages, replays and blocks of a large grid on stderr.

    Args:
        compiles_first: tells whether the replay has to be compiled before it runs.
    """
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task("reading", total=None)

        def on_stage(record: Mapping[str, Any]) -> None:
            left = f"{count(record['num_in'])} to {count(record['num_admitted'])}"
            words = f"stage {record['number']} {record['name']}: {left}"
            if "model" in record:
                words = f"{record['model']}, {words}"
            if record["number"] == _BEFORE_REPLAY and compiles_first():
                words = "compiling the replay, once for this version (up to a minute)"
            bar.update(task, description=words)

        def progress(done: int, total: int) -> None:
            bar.update(task, description="stage 5 simulate", completed=done, total=total)

        def on_block(done: int, total: int) -> None:
            words = "stages 1 to 4, combinations of the grid"
            bar.update(task, description=words, completed=done, total=total)

        yield on_stage, progress, on_block


def print_result(result: Mapping[str, Any]) -> None:
    """Print the funnel, the ranking and the answer."""
    out = console()
    out.print(_funnel(result["stages"]))
    if result["ranking"]:
        out.print(_ranking(result["ranking"]))
    for line in answer_lines(result):
        out.print(escape(line))
    if models := model_rows(result):
        out.print(_models(models))
    if result.get("audit"):
        out.print(_audit(result["audit"]))
    if result["nearest_misses"]:
        _print_misses(out, result["nearest_misses"])
    for line in level_lines(result.get("levels", [])):
        out.print(escape(line))


def _funnel(stages: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title="Stages", title_justify="left", box=None, pad_edge=False)
    table.add_column("stage")
    table.add_column("in", justify="right")
    table.add_column("left", justify="right")
    table.add_column("rejected because")
    for stage in stages:
        reasons = ", ".join(f"{name} {count(n)}" for name, n in stage["reasons"].items())
        name = f"{stage['number']} {stage['name']}"
        table.add_row(name, count(stage["num_in"]), count(stage["num_admitted"]), reasons)
    return table


def _ranking(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(
        title="Ranking (low to high below)", title_justify="left", box=None, pad_edge=False
    )
    table.add_column("#", justify="right")
    table.add_column("deployment", overflow="fold")
    table.add_column("verdict")
    for name in ("TTFT p99 ms", "TPOT p99 ms", "USD/Mtok"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows[:MAX_ROWS]:
        style = _VERDICT_STYLE[row["verdict"]]
        table.add_row(
            str(row["rank"]),
            (f"{escape(row['model'])}\n" if row.get("model") else "")
            + f"{escape(_shape(row))}\n[dim]{escape(_knobs(row))}[/]"
            + (f"\n[dim]{escape(words)}[/]" if (words := class_words(row)) else ""),
            f"[{style}]{row['verdict']}[/]",
            _ends(row["ttft_p99_s"], lambda x: f"{x * 1e3:,.0f}"),
            _ends(row["tpot_p99_s"], lambda x: f"{x * 1e3:,.1f}"),
            _ends(row["usd_per_mtok"], lambda x: f"{x:,.2f}"),
        )
    if len(rows) > MAX_ROWS:
        table.caption = f"{len(rows) - MAX_ROWS} more in result.json and report.html"
        table.caption_justify = "left"
    return table


def _audit(found: Mapping[str, Any]) -> Table:
    table = Table(
        title=f"Shortlist against all {count(found['num_exhaustive'])} survivors",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    for row in audit_rows(found):
        if not table.columns:
            for name in row:
                table.add_column(name, justify="right")
        table.add_row(*row.values())
    return table


def _models(rows: Sequence[Mapping[str, str]]) -> Table:
    """Return the first of each model."""
    table = Table(title="By model", title_justify="left", box=None, pad_edge=False)
    for name in rows[0]:
        table.add_column(
            name, overflow="fold", justify="right" if name in {"rank", "USD/Mtok"} else "left"
        )
    for row in rows:
        table.add_row(*(escape(text) for text in row.values()))
    return table


def _shape(row: Mapping[str, Any]) -> str:
    expert = f" ep{row['ep']}" if row["ep"] > 1 else ""
    ranks = data_parallel_ranks(row)
    split = f"tp{row['tp']} pp{row['pp']}" + (f" dp{ranks}" if ranks > 1 else "")
    return f"{row['num_gpus']}x {row['gpu']} {split}{expert} r{row['replicas']}"


def _knobs(row: Mapping[str, Any]) -> str:
    return (
        f"{row['weight_dtype']} kv-{row['kv_cache_dtype']} s{row['max_num_seqs']} "
        f"b{row['max_num_batched_tokens']}"
        + "".join(f" {name}={value}" for name, value in row.get("options", {}).items())
    )


def _ends(metric: Mapping[str, float | None], text: Callable[[float], str]) -> str:
    """Return the middle, and low to high on a second line."""
    low, mid, high = (metric[end] for end in ("low", "mid", "high"))
    if low is None or mid is None or high is None:
        return "unknown"
    return f"{text(mid)}\n[dim]{text(low)}-{text(high)}[/]"


def _print_misses(out: Console, misses: Sequence[Mapping[str, Any]]) -> None:
    """Print near misses, two lines each, so that an id is never broken."""
    out.print("Nearest misses")
    for miss in misses:
        words = miss_words(miss)
        out.print(f"  {miss['candidate_id']}", soft_wrap=True, markup=False)
        found = f"{words['observed']} against {words['limit']}"
        out.print(f"    {words['what']}: {found} ({words['by']})", markup=False)
        for text in fix_words(miss):
            out.print(f"    fix: {text}", markup=False)


_BINDS: Final = {
    "kv_cache": "the KV cache is full",
    "max_num_seqs": "max_num_seqs is reached",
    "max_num_batched_tokens": "the token budget is filled at its peak",
}


def level_lines(levels: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return where the winner changes with the load, and what comes nearest to breaking."""
    lines, last = [], None
    for row in levels:
        if row["candidate_id"] is None:
            lines.append(f"At load {row['level']:g} no replayed candidate keeps up.")
            continue
        key = (row["candidate_id"], row["verdict"])
        if key == last:
            continue
        last = key
        words = f"From load {row['level']:g}: {row['candidate_id']} {row['verdict']}"
        if row["nearest"]:
            words += f", nearest {row['nearest']} at {row['used'] * 100:.0f} % of it"
        if row["binds"]:
            words += f"; {_BINDS[row['binds']]}"
        lines.append(words + ".")
    return lines if len(lines) > 1 else []


def answer_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the answer of a run in sentences, and what stands in its way."""
    lines = [answer_sentence(result), settle_sentence(result)]
    if result["answer"]["status"] == "no_slo":
        texts = [a["text"] for a in result["assumptions"] if "no deployment can reach" in a["text"]]
        lines += [text[0].upper() + text[1:] + "." for text in texts]
    lines += [
        f"Note: {a['text']}."
        for a in result["assumptions"]
        if any(mark in a["text"] for mark in ("no profile of", "take more requests"))
    ]
    if result["answer"]["status"] in {"answer", "weak_evidence"}:
        service = [a["text"] for a in result.get("advice", []) if a["topic"] == "service"]
        lines += [f"Advice, for a replica under full load: {text}" for text in service]
    return [line for line in lines if line]


def print_dry_run(counts: Mapping[str, Any]) -> None:
    """Print what a run would do."""
    out = console()
    out.print(_funnel(counts["stages"]))
    if counts.get("sampled"):
        out.print(
            f"Estimated from {count(counts['sampled'])} combinations; stages 1 to 4 over all take "
            f"about {duration(counts['search_s'])} here"
        )
        return
    out.print(
        f"{count(counts['num_replays'])} replays, about {duration(counts['estimated_s'])} here"
    )
    print_exhaustive(counts["exhaustive"], counts["num_replays"])


def print_exhaustive(cost: Mapping[str, Any], num_replays: int) -> None:
    """Print what a replay of every survivor would take, unless that is what was done."""
    if cost and cost["num_replays"] > num_replays:
        number = cost["num_candidates"]
        console().print(
            f"Exhaustive: {count(cost['num_replays'])} replays of all {count(number)} survivors "
            f"take about {duration(cost['estimated_s'])} here; --exhaustive, or "
            f"shortlist.exhaustive_below: {number}",
            markup=False,
        )


def print_life(life: Mapping[str, Any]) -> None:
    """Print what happened to one candidate."""
    out, row = console(), life["candidate"]
    out.print(escape(row["candidate_id"]), style="bold")
    out.print(escape(deployment(row)))
    for stage in life["stages"]:
        out.print(f"  {stage['number']} {stage['name']:<14} {stage['outcome']}")
    if row.get("weight_bytes_per_gpu") is not None:
        out.print(
            f"Memory per GPU: weights {gib(row['weight_bytes_per_gpu'])}, reserved "
            f"{gib(row['reserved_bytes_per_gpu'])}, KV cache {gib(row['kv_bytes_per_gpu'])} "
            f"= {count(row['kv_tokens'])} tokens"
        )
    if row.get("batch") is not None:
        out.print(f"Batch: {count(row['batch'])} requests, bound by {row['batch_limit']}")
    if row["reason"] is not None:
        _print_rejection(out, row)
    if life["ranking"]:
        entry = life["ranking"]
        at_one = [row for row in life["simulations"] if row["level"] == 1.0]
        known = {**entry, **(at_one[0] if at_one else {})}
        out.print(f"Ranked {entry['rank']} ({entry['verdict']}), evidence {entry['evidence']}")
        for text, limit in limits(life["objectives"]):
            found = check(text, limit, known)
            out.print(
                f"  {text}: {found.verdict}, {found.mid} (pessimistic {found.worst}, "
                f"limit {found.limit})",
                markup=False,
            )
    if life["simulations"]:
        out.print(_levels(life["simulations"]))


def _print_rejection(out: Console, row: Mapping[str, Any]) -> None:
    unit = row["unit"] or ""
    out.print(f"Rejected by stage {row['stage']}: {row['reason']} ({row['kind']})")
    out.print(f"  {escape(reason_sentence(row['reason']))}")
    if row["stage"] == 1:  # the two numbers of a rule, exact: they may be about divisors
        found = f"{row['observed']:,.10g} against {row['limit']:,.10g}"
    else:
        words = unit.removeprefix("bytes").strip()  # said once, behind both numbers
        ends = (quantity(row["observed"], unit), limit_text(row["limit"], unit))
        observed, limit = (end.removesuffix(words).rstrip() for end in ends)
        found = f"found {observed}, limit {limit}"
    out.print(f"  {found} ({unit})", markup=False)
    if words := remedy(row):
        out.print(f"  would change it: {words}", markup=False)


def _levels(rows: Sequence[Mapping[str, Any]]) -> Table:
    stops = any(row.get("status") == UNSTABLE_BELOW for row in rows)
    title = "By load" + ("; not replayed where the queue grows at level 1 already" if stops else "")
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in (
        "level",
        "TTFT p99",
        "TPOT p99",
        "E2E p99",
        "tok/s",
        "attained",
        "batch",
        "KV used",
    ):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            f"{row['level']:g}",
            seconds(row["ttft_p99_s"]),
            seconds(row["tpot_p99_s"]),
            seconds(row["e2e_p99_s"]),
            count(row["output_tokens_per_s"]),
            share(row["slo_attainment"]),
            plain(row["mean_batch"], 2),
            share(row["peak_kv_usage"]),
        )
    return table

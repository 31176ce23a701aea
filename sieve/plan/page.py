"""The plan for people, as Markdown."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any


def page(data: Mapping[str, Any]) -> str:
    """Return `plan.md`."""
    totals = data["totals"]
    lines = [
        f"# Confirmation plan of {_text(data['run'])}",
        "",
        f"{totals['num_runs']} benchmarks, {_minutes(totals['duration_s'])} min, "
        f"{_number(totals['gpu_hours'])} GPU-hours, {_number(totals['usd'])} USD; options of "
        f"{_text(data['written_for'])}.",
        "",
        *(f"- {_text(note)}" for note in data["notes"]),
        "",
        "## Runs, in order",
        "",
        "| # | candidate | level | times | requests | min | GPU-h | USD | decides |",
        "|--:|---|--:|--:|--:|--:|--:|--:|---|",
        *(_row(run) for run in data["runs"]),
        "",
        "Copy this run's folder to the machines with the GPUs and vLLM, and work from there. Start "
        "the engines with the candidate's `serve.sh` or one of its `manifests/`, then run the "
        "benchmark; compare with `expected.json`.",
        "",
        "```sh",
        *(f"BASE_URL=http://HOST:8000 {shlex.join(run['bench'])}" for run in data["runs"]),
        "```",
        "",
        "Bring the results back to this machine and let predictions learn from them:",
        "",
        "```sh",
        "sieve calibrate results/*.json --run . --into calibration.json",
        "sieve run SPEC --calibration calibration.json",
        "```",
        "",
        "## Candidates",
        "",
        "| candidate | why | verdict | GPUs | replicas | left out |",
        "|---|---|---|---|--:|---|",
        *(_candidate(entry) for entry in data["candidates"]),
        "",
    ]
    if data["placeholders"]:
        lines += ["## To fill in", ""]
        lines += [f"- `{name}`: {_text(text)}" for name, text in data["placeholders"].items()]
        lines.append("")
    return "\n".join(lines)


def _row(run: Mapping[str, Any]) -> str:
    why = "; ".join(_text(reason["decides"]) for reason in run["reasons"])
    cells = [
        str(run["number"]), _text(run["candidate_id"]), f"{run['level']:g}", str(run["num_runs"]),
        f"{run['num_requests']:,}", _minutes(run["duration_s"]), _number(run["gpu_hours"]),
        _number(run["usd"]), why,
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _candidate(entry: Mapping[str, Any]) -> str:
    left = "; ".join(f"{name}: {why}" for name, why in entry["left_out"].items()) or "-"
    cells = [
        _text(entry["candidate_id"]), _text(", ".join(entry["roles"])), entry["verdict"],
        f"{entry['num_gpus']} x {_text(entry['gpu'])}", str(entry["replicas"]), _text(left),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _text(text: str) -> str:
    """Return text in which Markdown and HTML find nothing to act on."""
    return re.sub(r"([\\`*_\[\]<>|{}#!&~])", r"\\\1", " ".join(str(text).split()))


def _minutes(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds / 60:.1f}"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.2f}"

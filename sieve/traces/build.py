"""Write the summaries of shipped traffic from a folder with the original traces.

Run by hand as `python -m sieve.traces.build DATA_FOLDER`; its output is part of the package. The
folder holds `traces/azure_llm_2023_conv/AzureLLMInferenceTrace_conv.csv.gz`,
`traces/mlperf_lengths/deepseek-r1.parquet` and `llama3-1-405b.parquet`, and
`traces/claude_code_agentic/requests.parquet`. Only statistics are kept, no request of a trace.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from sieve.arrays import Requests, chain_starts
from sieve.resources import package_data
from sieve.spec.models import ArrivalSpec, GammaArrivals
from sieve.traces import azure_csv, lengths, weka
from sieve.traces.files import TraceFile, read_file
from sieve.traces.limits import generator
from sieve.traces.summary import Origin, Summary, Window, summarise
from sieve.traces.synthetic import draw_arrivals

CHAT_FILE: Final = "traces/azure_llm_2023_conv/AzureLLMInferenceTrace_conv.csv.gz"
REASONING_FILE: Final = "traces/mlperf_lengths/deepseek-r1.parquet"
RAG_FILE: Final = "traces/mlperf_lengths/llama3-1-405b.parquet"
CODING_FILE: Final = "traces/claude_code_agentic/requests.parquet"

_DATE: Final = "2026-11-29"
_WINDOW_S: Final = 120.0  # of 60 to 600 s closest to the trace's dispersion at 5 to 180 s
_REASONING_RATE_PER_S: Final = 2.0
_REASONING_CV: Final = 1.5
_RAG_RATE_PER_S: Final = 1.0
_CODING_STARTS_PER_S: Final = 0.02
MOST_TOKENS: Final = 120_000
"""Longest request of the shipped coding sessions: it fits a context of 128 Ki tokens."""
MOST_PAUSE_S: Final = 300.0
"""A longer pause ends a session: the next turn begins another, with all of its prompt."""


def main(arguments: list[str]) -> int:
    """Write the shipped summaries into the package; return the exit code."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m sieve.traces.build DATA_FOLDER\n")
        return 2
    folder = Path(arguments[0])
    for summary in (
        chat(read_file(folder / CHAT_FILE, CHAT_FILE)),
        reasoning(read_file(folder / REASONING_FILE, REASONING_FILE)),
        rag(read_file(folder / RAG_FILE, RAG_FILE)),
        coding(read_file(folder / CODING_FILE, CODING_FILE)),
    ):
        path = package_data("traces", "data", f"{summary.name}.json")
        path.write_text(summary.to_json(), encoding="utf-8", newline="\n")
    return 0


def chat(file: TraceFile) -> Summary:
    """Return the summary of an hour of a chat service, arrivals as measured."""
    return summarise(
        azure_csv.read(file),
        name="chat",
        about="One hour of a chat service of 2023: medium prompts, short answers, mild bursts.",
        origin=Origin(
            name="Azure LLM inference trace 2023, Microsoft (conversation)",
            licence="CC-BY-4.0",
            reference="Azure/AzurePublicDataset at b469a11",
            sha256=file.sha256,
            date=_DATE,
        ),
        window_s=_WINDOW_S,
    )


def reasoning(file: TraceFile) -> Summary:
    """Return the summary of the reasoning lengths, with arrivals that are stated, not measured."""
    rate_per_s, cv = _REASONING_RATE_PER_S, _REASONING_CV
    return _stated(
        file,
        name="reasoning",
        about="Questions to a reasoning model with very long answers; "
        f"arrivals are stated ({rate_per_s:g}/s, CV {cv:g}), not measured.",
        title="MLPerf Inference deepseek-r1 data set, lengths",
        rate_per_s=rate_per_s,
        cv=cv,
        date=_DATE,
    )


def rag(file: TraceFile) -> Summary:
    """Return the summary of long prompts with medium answers; arrivals are stated."""
    return _stated(
        file,
        name="rag",
        about="Questions over long documents: prompts of about 9,400 tokens; "
        f"arrivals are stated ({_RAG_RATE_PER_S:g}/s, CV 1), not measured.",
        title="MLPerf Inference llama3.1-405b data set, lengths",
        rate_per_s=_RAG_RATE_PER_S,
        cv=1.0,
        date="2026-11-30",
    )


def coding(file: TraceFile) -> Summary:
    """Return the summary of coding-agent sessions, cut to a context of 128 Ki tokens.

    Turns with a longer prompt and answer are left out, and a pause above five minutes begins a new
    session. Sub-agents count as sessions of their own. When sessions begin is stated.
    """
    turns = weka.read(file)
    assert turns.previous is not None
    assert turns.delay_s is not None
    short = turns.input_tokens + turns.output_tokens <= MOST_TOKENS
    goes_on = (turns.previous >= 0) & (turns.delay_s <= MOST_PAUSE_S) & short[turns.previous]
    split = replace(turns, previous=np.where(goes_on, turns.previous, -1))
    kept = split.take(np.flatnonzero(short))
    assert kept.previous is not None
    assert kept.delay_s is not None
    starts = int((kept.previous < 0).sum())
    rng = generator(0, "build.coding")
    rate_per_s = _CODING_STARTS_PER_S
    at, _ = draw_arrivals(ArrivalSpec(poisson_per_s=rate_per_s), starts, rng)
    arrival_s = at[(np.cumsum(kept.previous < 0) - 1)[chain_starts(kept.previous)]]
    summary = summarise(
        replace(kept, arrival_s=arrival_s),
        name="coding",
        about="Sessions of a coding agent: growing prompts up to 120,000 tokens of which most is "
        f"in the prefix cache; session starts are stated ({rate_per_s:g}/s), not measured.",
        origin=Origin(
            name="kv-cache-tester coding-agent sessions (callanjfox), turns up to 120,000 tokens",
            licence="Apache-2.0",
            reference="callanjfox/kv-cache-tester at 94f6046",
            sha256=file.sha256,
            date="2026-11-30",
            arrivals=f"session starts stated, not measured: Poisson, {rate_per_s:g}/s",
        ),
        window_s=float(at[-1]),
    )
    return _with_stated_arrivals(summary, starts, rate_per_s, 1.0)


def _stated(
    file: TraceFile, *, name: str, about: str, title: str, rate_per_s: float, cv: float, date: str
) -> Summary:
    """Return the summary of a table of lengths with stated arrivals."""
    table = lengths.read(file)
    n = len(table.input_tokens)
    gamma = ArrivalSpec(gamma=GammaArrivals(rate_per_s=rate_per_s, cv=cv))
    arrival_s, _ = draw_arrivals(gamma, n, generator(0, f"build.{name}"))
    origin = Origin(
        name=title,
        licence="Apache-2.0",
        reference="openshift-psap/performance-dashboard at 7100702",
        sha256=file.sha256,
        date=date,
        arrivals=f"stated, not measured: gamma gaps, {rate_per_s:g} requests/s, CV {cv:g}",
    )
    summary = summarise(
        Requests(arrival_s, table.input_tokens, table.output_tokens, source=file.name),
        name=name,
        about=about,
        origin=origin,
        window_s=float(arrival_s[-1]),
    )
    return _with_stated_arrivals(summary, n, rate_per_s, cv)


def _with_stated_arrivals(summary: Summary, n: int, rate_per_s: float, cv: float) -> Summary:
    span_s = n / rate_per_s
    window = Window(span_s, n, rate_per_s, cv, None)
    return replace(
        summary,
        span_s=span_s,
        rate_per_s=rate_per_s,
        gap_cv=cv,
        dispersion=None,
        windows=(window,),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Write the summaries of shipped traffic from a folder with the original traces.

Run by hand as `python -m sieve.traces.build DATA_FOLDER`; its output is part of the package. The
folder holds `traces/azure_llm_2023_conv/AzureLLMInferenceTrace_conv.csv.gz` and
`traces/mlperf_lengths/deepseek-r1.parquet`. Only statistics are kept, no request of a trace.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from sieve.arrays import Requests
from sieve.resources import package_data
from sieve.spec.models import ArrivalSpec, GammaArrivals
from sieve.traces import azure_csv, lengths
from sieve.traces.files import TraceFile, read_file
from sieve.traces.limits import generator
from sieve.traces.summary import Origin, Summary, Window, summarise
from sieve.traces.synthetic import draw_arrivals

CHAT_FILE: Final = "traces/azure_llm_2023_conv/AzureLLMInferenceTrace_conv.csv.gz"
REASONING_FILE: Final = "traces/mlperf_lengths/deepseek-r1.parquet"

_DATE: Final = "2026-11-29"
_WINDOW_S: Final = 120.0  # of 60 to 600 s closest to the trace's dispersion at 5 to 180 s
_REASONING_RATE_PER_S: Final = 2.0
_REASONING_CV: Final = 1.5


def main(arguments: list[str]) -> int:
    """Write `chat.json` and `reasoning.json` into the package; return the exit code."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m sieve.traces.build DATA_FOLDER\n")
        return 2
    folder = Path(arguments[0])
    for summary in (
        chat(read_file(folder / CHAT_FILE, CHAT_FILE)),
        reasoning(read_file(folder / REASONING_FILE, REASONING_FILE)),
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
    table = lengths.read(file)
    rate_per_s, cv = _REASONING_RATE_PER_S, _REASONING_CV
    n = len(table.input_tokens)
    gamma = ArrivalSpec(gamma=GammaArrivals(rate_per_s=rate_per_s, cv=cv))
    arrival_s, _ = draw_arrivals(gamma, n, generator(0, "build.reasoning"))
    origin = Origin(
        name="MLPerf Inference deepseek-r1 data set, lengths",
        licence="Apache-2.0",
        reference="openshift-psap/performance-dashboard at 7100702",
        sha256=file.sha256,
        date=_DATE,
        arrivals=f"stated, not measured: gamma gaps, {rate_per_s:g} requests/s, CV {cv:g}",
    )
    about = (
        "Questions to a reasoning model with very long answers; "
        f"arrivals are stated ({rate_per_s:g}/s, CV {cv:g}), not measured."
    )
    summary = summarise(
        Requests(arrival_s, table.input_tokens, table.output_tokens, source=file.name),
        name="reasoning",
        about=about,
        origin=origin,
        window_s=float(arrival_s[-1]),
    )
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

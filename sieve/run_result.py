"""What `sieve.run` returns: the content of a run folder as plain data and frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from sieve.arrays import Requests
from sieve.model_folders import MODELS
from sieve.pipeline import EXIT_CODES
from sieve.report.answer import answer_sentence
from sieve.report.html import render_report
from sieve.report.notebook import notebook_view
from sieve.results import TRAFFIC, RunFolder, to_json
from sieve.traces import stored


@dataclass(eq=False)
class RunResult:
    """The result of a run.

    Attributes:
        data: the content of `result.json`.
        candidates: one row per candidate of the grid, with the stage that rejected it.
        simulations: one row per replayed candidate and load level.
        files: further text files by path below the run folder.
        requests: the traffic at level 1.0, kept in the folder for `sieve plan`.
        timeline: the leader's queue, batch and cache over time; empty where nothing was ranked.
        exhaustive: what a replay of every survivor would take on this machine, an estimate:
            `num_candidates`, `num_replays`, `estimated_s`; empty if stage 4 did not run.
        folder: where it was written, None if it was not.
        parts: of a run over several models the result of each, by its label.
    """

    data: dict[str, Any]
    candidates: pl.DataFrame
    simulations: pl.DataFrame
    files: dict[str, str] = field(default_factory=dict)
    requests: Requests | None = None
    exhaustive: dict[str, Any] = field(default_factory=dict)
    timeline: pl.DataFrame = field(default_factory=pl.DataFrame)
    folder: Path | None = None
    parts: dict[str, RunResult] = field(default_factory=dict)

    @property
    def answer(self) -> dict[str, Any]:
        """The answer: status, winners, tie group, what would settle it."""
        answer: dict[str, Any] = self.data["answer"]
        return answer

    @property
    def ranking(self) -> pl.DataFrame:
        """The ranking as a frame: axes, verdict, and each metric with `_low` and `_high`."""
        rows = []
        for entry in self.data["ranking"]:
            row: dict[str, Any] = {}
            for name, value in entry.items():
                if name == "evidence_shares":
                    row |= {f"evidence_share_{k}": v for k, v in value.items()}
                elif name == "intervals":
                    row |= {
                        f"{metric}_{source}_{end}": number
                        for metric, sources in value.items()
                        for source, ends in sources.items()
                        for end, number in ends.items()
                    }
                elif name == "options":
                    row |= value
                elif name == "classes":
                    row |= {f"verdict_in_{k}": found["verdict"] for k, found in value.items()}
                elif isinstance(value, dict):
                    row |= {f"{name}_{end}": value[end] for end in ("low", "mid", "high")}
                else:
                    row[name] = value
            rows.append(row)
        return pl.DataFrame(rows, infer_schema_length=None)

    @property
    def exit_code(self) -> int:
        """The command line's exit code; 0 when stages were left out."""
        return EXIT_CODES.get(self.answer["status"], 0)

    def save(self, folder: str | Path) -> Path:
        """Write the run folder and return its path."""
        target = RunFolder(Path(folder))
        self.write(target)
        target.close()
        return target.path

    def write(self, target: RunFolder) -> None:
        """Write every file of the result into a run folder, `result.json` last."""
        for label, part in self.parts.items():
            below = target.below(f"{MODELS}/{label}")
            if part.folder != below:
                part.save(below)
        target.write_frame("candidates.parquet", self.candidates)
        target.write_frame("simulations.parquet", self.simulations)
        if self.requests is not None:
            target.write_frame(TRAFFIC, stored.to_frame(self.requests))
        for name, text in self.files.items():
            target.write_text(name, text)
        target.write_frame("timeline.parquet", self.timeline)
        target.write_text("report.html", self.report())
        target.write_text("result.json", to_json(self.data))
        self.folder = target.path

    def report(self) -> str:
        """Return the report as one HTML page that needs nothing else."""
        return render_report(
            self.data, self.candidates, self.simulations, self.timeline, self.files
        )

    def _repr_html_(self) -> str:
        return notebook_view(self.data)

    def __repr__(self) -> str:
        return f"RunResult({answer_sentence(self.data)})"

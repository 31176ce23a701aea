"""What is fed: each reader of data from strangers, with the valid inputs that mutation starts from.

A target takes the path of a file. It returns or raises `SieveError`; all else is a fault of ours.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
CORPUS: Final = Path(__file__).parent / "corpus"
_MODELS: Final = ROOT / "sieve" / "catalog" / "data" / "models"


@dataclass(frozen=True)
class Target:
    """One reader.

    Attributes:
        name: also the folder of its seeds in `corpus/`.
        suffix: of the file that it is given.
        read: takes the path.
        more: further seeds, files of the repository.
    """

    name: str
    suffix: str
    read: Callable[[Path], Any]
    more: Sequence[Path] = ()

    def seeds(self) -> list[bytes]:
        """Return the valid inputs."""
        stored = sorted((CORPUS / self.name).glob("*")) + sorted(self.more)
        found = [path.read_bytes() for path in stored]
        return [_plain(data, path) for data, path in zip(found, stored, strict=True)]


def _plain(data: bytes, path: Path) -> bytes:
    """Return what a stored seed stands for: unpacked, or the config of a catalogue entry."""
    if data[:2] == b"\x1f\x8b":
        return gzip.decompress(data)
    if path.parent == _MODELS:
        return json.dumps(yaml.safe_load(data)["config"]).encode()
    return data


def _spec(path: Path) -> None:
    from sieve.spec import load_specs

    load_specs(path)


def _grid(path: Path) -> None:
    """Read the file as a grid, and enumerate it where it is small."""
    from sieve.catalog.engines import load_engine
    from sieve.catalog.models import inline_model, load_model
    from sieve.grid import expand
    from sieve.spec import load_spec

    spec = load_spec({
        "name": "fuzz", "model": "Qwen/Qwen3-8B", "traffic": {"trace": "chat", "requests": 10},
        "slo": {"ttft_p99": "2 s"}, "grid": str(path),
    })  # fmt: skip
    model = load_model(spec.model) if isinstance(spec.model, str) else inline_model(spec.model)
    expand(spec, model, load_engine(spec.engine))


def _config(path: Path) -> None:
    """Read the file as a model's configuration, and open its ledger."""
    from sieve.catalog.matrices import layer_plans
    from sieve.catalog.models import load_model

    layer_plans(load_model(str(path), any_family=True))


def _traffic(name: str, **more: Any) -> Target:
    """Return the reader of one traffic format, with what the spec adds to the file."""

    def read(path: Path) -> None:
        from sieve.spec import TrafficSpec
        from sieve.traces import load_traffic

        spec = TrafficSpec.model_validate({"trace": str(path), **more})
        load_traffic(spec, seed=0, base_dir=path.parent)

    suffix = next(iter(sorted((CORPUS / name).glob("*")))).suffix
    return Target(name, suffix, read)


def _recording(path: Path) -> None:
    from sieve.verify.scheduler import verify_schedules

    verify_schedules(path)


def _measured(path: Path) -> None:
    from sieve.verify.measured_rows import read_rows

    read_rows(path)


def _steps(path: Path) -> None:
    from sieve.verify.steps import read_steps

    read_steps(path)


def _memory(path: Path) -> None:
    from sieve.verify.memory import verify_memory

    verify_memory(path)


def _log(path: Path) -> None:
    from sieve.calibration.start_up_log import read_start_up_log

    read_start_up_log(path)


def _observations(path: Path) -> None:
    from sieve.calibration.observations import read_observations

    read_observations([path])


def _results(path: Path) -> None:
    from sieve.calibration.readers import read_results

    read_results(path)


def _jobs(path: Path) -> None:
    """Read the file as jobs, and each entry."""
    from sieve.jobs.job_file import read_jobs

    for job in read_jobs(path).jobs:
        job.entry()


def _formula(path: Path) -> None:
    from sieve.evaluate import evaluate_cases

    evaluate_cases(path)


def _kernel_table(path: Path) -> None:
    """Read the CSV as a kernel table and hold it to every check."""
    import polars as pl

    from sieve.catalog.accelerators import load_gpu
    from sieve.perf.table_check import check_for_gpu, read_frame

    try:
        frame = pl.read_csv(path, infer_schema_length=None)
    except (pl.exceptions.PolarsError, OSError):
        return  # not a table; the Parquet bytes themselves are another target
    stored = path.with_suffix(".parquet")
    frame.write_parquet(stored)
    check_for_gpu(stored, read_frame(stored, "gemm"), "gemm", load_gpu("H100-SXM-80GB"))


def _parquet(path: Path) -> None:
    from sieve.perf.table_check import read_frame

    read_frame(path, "gemm")


POISSON: Final = {"poisson_per_s": 4}
LOG: Final = {"ts": "when", "in": "prompt", "out": "answer", "session": "user"}
_RECORDED: Final = ROOT / "tests" / "conformance" / "data" / "vllm_scheduler"
TARGETS: Final[tuple[Target, ...]] = (
    Target("spec", ".yaml", _spec, [*(ROOT / "examples").glob("*.yaml")]),
    Target("grid", ".yaml", _grid),
    Target("config", ".json", _config, [*_MODELS.glob("*.yaml")]),
    _traffic("azure"),
    _traffic("mooncake", format="mooncake_trace"),
    _traffic("timed_trace", format="timed_trace"),
    _traffic("guidellm_trace", format="guidellm_trace"),
    _traffic("guidellm_mooncake", format="guidellm_mooncake"),
    _traffic("burstgpt"),
    _traffic("bailian"),
    _traffic("weka", arrival=POISSON),
    _traffic("llmservingsim"),
    _traffic("sieve_table"),
    _traffic("access_log", format="access_log", columns=LOG, time_unit="ms"),
    _traffic("lengths", arrival=POISSON),
    _traffic("sharegpt", arrival=POISSON, characters_per_token=4),
    _traffic("custom", format="custom", arrival=POISSON, characters_per_token=4),
    _traffic("guidellm_synthetic", format="guidellm_synthetic", arrival=POISSON),
    _traffic("percentiles", format="percentiles", requests=50),
    _traffic("percentiles_csv", format="percentiles", requests=50),
    _traffic("prometheus"),
    Target("recording", ".jsonl", _recording, [*_RECORDED.glob("00[135]*.gz")]),
    Target("measured", ".csv", _measured),
    Target("steps", ".csv", _steps),
    Target("memory", ".csv", _memory),
    Target("start_up_log", ".log", _log),
    Target("observations", ".csv", _observations),
    Target("results", ".json", _results),
    Target("jobs", ".yaml", _jobs),
    Target("jobs_csv", ".csv", _jobs),
    Target("formula", ".json", _formula),
    Target("kernel_table", ".csv", _kernel_table),
    Target("parquet", ".parquet", _parquet),
)

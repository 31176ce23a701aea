"""Small specs and finished runs that several test files share."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SMALL: dict[str, Any] = {
    "name": "small",
    "model": "Qwen/Qwen3-8B",
    "traffic": {
        "synthetic": {
            "requests": 100,
            "isl": {"distribution": "uniform", "min": 50, "max": 400},
            "osl": {"distribution": "uniform", "min": 5, "max": 40},
            "arrival": {"poisson_per_s": 4},
        },
        "levels": [0.5, 1.0],
    },
    "slo": {
        "ttft_p99": "2 s",
        "tpot_p99": "50 ms",
        "attainment": {"share": 0.95, "ttft": "2 s", "tpot": "50 ms"},
    },
    "fleet": {"gpus": ["H100-SXM-80GB"], "max_gpus": 2, "usd_per_gpu_hour": {"H100-SXM-80GB": 3.6}},
    "grid": {
        "axes": {
            "tp": [1, 2, 4],
            "weight_dtype": ["bf16", "fp8"],
            "max_num_seqs": [64],
            "max_num_batched_tokens": [2048],
        }
    },
}
REFERENCE: dict[str, Any] = {
    "name": "reference-27b",
    "traffic": {"trace": "chat"},
    "slo": {"ttft_p99": "2 s", "tpot_p99": "50 ms"},
    "grid": "reference_27b",
}


def change(spec: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted key; None removes it."""
    *parents, last = path.split(".")
    for part in parents:
        spec = spec.setdefault(part, {})
    if value is None:
        spec.pop(last, None)
    else:
        spec[last] = value


@pytest.fixture(scope="session")
def make_spec() -> Callable[..., dict[str, Any]]:
    """Return a spec of six candidates and 100 requests, with dotted keys changed."""

    def make(changes: dict[str, Any] | None = None, /, **top: Any) -> dict[str, Any]:
        spec = copy.deepcopy(SMALL)
        for path, value in {**(changes or {}), **top}.items():
            change(spec, path, value)
        return spec

    return make


@pytest.fixture(scope="session")
def reference_spec() -> dict[str, Any]:
    return copy.deepcopy(REFERENCE)


@pytest.fixture(scope="session")
def small_run(
    make_spec: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Any:
    """The finished run of the small spec, written to a folder."""
    import sieve

    folder: Path = tmp_path_factory.mktemp("small") / "run"
    return sieve.run(make_spec(), out=folder)

"""Days of traffic as files, and a spec whose grid is small enough to search in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml


@pytest.fixture
def day_file(tmp_path):
    """Write a day in the form of the Azure traces and return its path."""

    def make(name="day1.csv", *, seed=1, n=300, rate=4.0, isl=500, osl=60, cv=1.0) -> Path:
        rng = np.random.default_rng(seed)
        at = np.cumsum(rng.gamma(1 / cv**2, cv**2 / rate, n))
        inputs = np.maximum(1, isl * rng.lognormal(0, 0.5, n)).astype(int)
        outputs = np.maximum(2, osl * rng.lognormal(0, 0.5, n)).astype(int)
        start = np.datetime64("2026-11-16T00:00:00.000000")
        stamps = start + (at * 1e6).astype("timedelta64[us]")
        rows = zip(stamps, inputs, outputs, strict=True)
        lines = [f"{str(s).replace('T', ' ')},{i},{o}" for s, i, o in rows]
        path = tmp_path / name
        path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n")
        return path

    return make


@pytest.fixture
def service(tmp_path, make_spec):
    """Write a spec of a service and return its path."""

    def make(changes=None, name="service") -> Path:
        spec = make_spec(
            {
                "traffic": {"trace": "chat", "levels": [0.5, 1.0, 2.0]},
                "grid.axes": {
                    "tp": [1, 2],
                    "replicas": [1, 2, 4],
                    "weight_dtype": ["fp8"],
                    "max_num_seqs": [16, 64],
                    "max_num_batched_tokens": [2048],
                },
                "fleet.max_gpus": 4,
                **(changes or {}),
            },
            name=name,
        )
        path = tmp_path / "service.yaml"
        path.write_text(yaml.safe_dump(spec, sort_keys=False))
        return path

    return make

"""Measured points that the saturation model itself makes: they test the fitter only."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import pytest

from sieve.calibration.observations import Observation, Observations
from sieve.calibration.saturation import hardware_facts, model_facts
from sieve.catalog.accelerators import load_gpu
from sieve.catalog.models import load_model
from sieve.formulas.slim import SLIM

TRUE = {"eta_c": 0.5, "eta_m": 0.8, "alpha": 1e-4, "gamma": 1e-6, "B0": 20.0, "t_fixed": 0.02}
NAMES = ("facebook/opt-1.3b", "facebook/opt-2.7b", "meta-llama/Llama-2-7b-hf")


@pytest.fixture
def made() -> Callable[..., Observations]:
    def build(
        names: Iterable[str] = NAMES,
        isls: Iterable[int] = (128, 512),
        osls: Iterable[int] = (64, 256),
        batches: Iterable[int] = (1, 4, 16, 64, 128),
        gpu: str = "H100-SXM-80GB",
    ) -> Observations:
        hardware = hardware_facts(load_gpu("H100-SXM-80GB"))
        rows = []
        for name, isl, osl, batch in itertools.product(names, isls, osls, batches):
            given = {
                "model": model_facts(load_model(name)), "hardware": hardware, "params": TRUE,
                "IL": isl, "OL": osl, "B": batch,
            }  # fmt: skip
            rate = SLIM["slim.predict"](given)["throughput"]
            rows.append(Observation(name, gpu, isl, osl, batch, rate, engine="vllm"))
        inputs = ({"name": "made.csv", "sha256": "0" * 64},)
        return Observations(tuple(rows), (), inputs)

    return build

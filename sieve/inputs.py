"""What a run has read, each with its checksum: `inputs` of `result.json`."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from typing import Any

from sieve.catalog.architecture import EngineProfile, Gpu, ModelArchitecture
from sieve.context import RunContext
from sieve.errors import TableError
from sieve.perf.kernel_table import system_folder
from sieve.perf.table_folder import label
from sieve.results import clean


def _digest(facts: Any) -> str:
    text = json.dumps(clean(asdict(facts)), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def inputs_of(context: RunContext) -> list[dict[str, str]]:
    """Return name and checksum of traffic, model, engine, GPUs, kernel tables, calibration."""
    facts: list[tuple[str, ModelArchitecture | EngineProfile | Gpu]] = [
        (f"model:{context.model.name}", context.model),
        (f"engine:{context.engine.name}", context.engine),
        *(
            (f"gpu:{name}", replace(gpu, kernel_system=label(gpu.kernel_system)))
            for name, gpu in context.gpus.items()
        ),
    ]
    rows = [{"name": name, "sha256": _digest(fact)} for name, fact in facts]
    traffic = {"name": f"traffic:{context.requests.source}", "sha256": context.requests.sha256}
    systems = sorted({gpu.kernel_system for gpu in context.gpus.values() if gpu.kernel_system})
    if context.is_reference:
        systems = []
    # The provenance file lists the checksum of every table beside it.
    tables = [
        {
            "name": f"kernel_tables:{label(name)}",
            "sha256": hashlib.sha256(_provenance(name)).hexdigest(),
        }
        for name in systems
    ]
    calibration = []
    if context.calibration is not None:
        calibration = [{"name": "calibration", "sha256": context.calibration.sha256}]
    return [traffic, *rows, *tables, *calibration]


def _provenance(system: str) -> bytes:
    folder = system_folder(system)
    if folder is None:
        raise TableError(f"the kernel tables of {system} are missing from this installation")
    return (folder / "provenance.yaml").read_bytes()

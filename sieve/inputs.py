"""What a run has read and what starts its engines: `inputs` and `serving` of `result.json`."""

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
from sieve.spec import is_path
from sieve.traces import stored
from stages.s7_confirm import served_name


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


def serving_of(context: RunContext) -> dict[str, Any]:
    """Return what a plan needs to start the engines and to replay the traffic.

    `model` is null where the run was given a path or facts: the user names a checkpoint then.
    """
    named = context.spec.model
    model = None
    if isinstance(named, str) and not is_path(named, context.spec.base_dir):
        model = served_name(named, context.model.name)
    prefix = context.requests.prefix
    return {
        "model": model,
        "checkpoint_dtype": context.model.checkpoint_dtype,
        "engine": context.engine.name,
        "engine_version": _version_of(context),
        "traffic": {
            "sha256": stored.digest(context.requests),
            "num_requests": len(context.requests),
            "users": context.requests.closed_loop_users,
            "block_tokens": None if prefix is None else prefix.block_tokens,
        },
    }


def _version_of(context: RunContext) -> str:
    """Return the engine's version: the one asked for, else the profile's; "" without versions."""
    return context.engine.requested.partition("==")[2].strip() or context.engine.version

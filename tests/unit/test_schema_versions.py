"""Every file that sieve reads back names its schema version; another one is refused with a hint."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from sieve.calibration.saturation import FORMAT, read_document
from sieve.calibration.serving_file import add_points, read_calibration
from sieve.detail import write_table
from sieve.errors import SieveError
from sieve.jobs.history import read_history
from sieve.jobs.summary import to_document
from sieve.memory.corrections import read_corrections
from sieve.perf.kernel_table import read_provenance
from sieve.perf.table_store import write_tables
from sieve.results import read_frame, read_result
from sieve.traces.summary import Summary
from sieve.version import schema_fault

NEWER = "a newer sieve wrote it; upgrade with `pip install --upgrade sieve-sizing`"


def result(folder: Path, version: Any) -> None:
    (folder / "result.json").write_text(json.dumps({"schema_version": version}))
    read_result(folder)


def table_of_a_run(folder: Path, version: Any) -> None:
    frame = pl.DataFrame({"a": [1]})
    frame.write_parquet(folder / "t.parquet", metadata={"sieve_schema_version": str(version)})
    read_frame(folder, "t.parquet")


def ledger_corrections(folder: Path, version: Any) -> None:
    (folder / "c.json").write_text(json.dumps({"schema_version": version, "start_up": []}))
    read_corrections(folder / "c.json")


def measured_points(folder: Path, version: Any) -> None:
    (folder / "c.json").write_text(json.dumps({"schema_version": version}))
    read_calibration(folder / "c.json")


def merged_points(folder: Path, version: Any) -> None:
    (folder / "c.json").write_text(json.dumps({"schema_version": version}))
    add_points(folder / "c.json", [])


def saturation_parameters(folder: Path, version: Any) -> None:
    (folder / "p.json").write_text(json.dumps({"format": FORMAT, "version": version}))
    read_document(folder / "p.json")


def traffic_summary(folder: Path, version: Any) -> None:
    Summary.from_json(json.dumps({"schema_version": version}), str(folder))


def kernel_tables(folder: Path, version: Any) -> None:
    (folder / "provenance.yaml").write_text(yaml.safe_dump({"schema_version": version}))
    read_provenance(folder)


def nightly_history(folder: Path, version: Any) -> None:
    from sieve.jobs.history import APPLICATION_ID

    path = folder / "history.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE nights (night INTEGER)")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {int(version)}")
    connection.commit()
    connection.close()
    read_history(folder)


READERS: list[tuple[Callable[[Path, Any], None], str, Any]] = [
    (result, "sieve run", "0.4"),
    (table_of_a_run, "sieve run", "0.4"),
    (ledger_corrections, "sieve calibrate", 0),
    (measured_points, "sieve calibrate", 0),
    (merged_points, "sieve calibrate", 0),
    (saturation_parameters, "sieve slim fit", 0),
    (traffic_summary, "sieve trace inspect", 0),
    (kernel_tables, "sieve tables import", 0),
    (nightly_history, "--history", 0),
]


@pytest.mark.parametrize(
    ("read", "remake", "older"), READERS, ids=lambda x: getattr(x, "__name__", "")
)
def test_another_schema_is_refused_with_a_hint(
    tmp_path: Path, read: Callable[[Path, Any], None], remake: str, older: Any
) -> None:
    newer = "9.0" if isinstance(older, str) else 9
    with pytest.raises(SieveError) as refused:
        read(tmp_path, newer)
    assert NEWER in str(refused.value)
    assert str(tmp_path) in str(refused.value)
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    with pytest.raises(SieveError) as refused:
        read(tmp_path, older)
    assert remake in str(refused.value)
    assert NEWER not in str(refused.value)


@pytest.mark.parametrize(
    ("found", "known", "words"),
    [
        ("1.9", "1.0", ""),
        (1, 1, ""),
        ("2", 1, NEWER),
        (None, 1, "it names no schema version, this sieve reads 1: do this"),
        ([2], 1, "do this"),
        ("9" * 5000, 1, "do this"),
        ("\u0662", 1, "do this"),  # a digit two of another script
    ],
)
def test_only_the_major_version_counts(found: Any, known: Any, words: str) -> None:
    fault = schema_fault(found, known, "do this")
    assert bool(fault) == bool(words)
    assert words in fault
    assert len(fault) < 200


def test_written_files_name_their_version(tmp_path: Path) -> None:
    write_table(pl.DataFrame({"a": [1]}), tmp_path / "requests.parquet")
    kept = pl.read_parquet_metadata(tmp_path / "requests.parquet")
    assert kept["sieve_schema_version"] == "1.0"
    assert to_document([], 0.0)["schema_version"] == "1.0"
    assert write_tables(tmp_path / "tables", {"gpu": "x"}, {}, {})["schema_version"] == 1
    assert read_provenance(tmp_path / "tables")["gpu"] == "x"

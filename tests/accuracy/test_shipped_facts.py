"""The catalogue and the traffic that are shipped are what their sources give, to the byte."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import sieve.catalog.build
import sieve.traces.build
from sieve.resources import package_data

DATA = Path(os.environ.get("SIEVE_DATA", "."))
BUILDERS = (sieve.catalog.build, sieve.traces.build)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the builders write to instead of the package."""

    def place(*parts: str) -> Path:
        path = tmp_path.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    for builder in BUILDERS:
        monkeypatch.setattr(builder, "package_data", place)
    return tmp_path


@pytest.mark.skipif(not (DATA / "models").is_dir(), reason="SIEVE_DATA names no folder with models")
def test_the_catalogue_is_what_its_sources_give(elsewhere: Path, capsys: Any) -> None:
    arguments = [str(DATA / "models"), str(DATA / "hardware" / "gpus.csv")]
    assert sieve.catalog.build.main(arguments) == 0
    assert capsys.readouterr().out == "84 models, 32 accelerators\n"
    made = elsewhere / "catalog" / "data"
    shipped = package_data("catalog", "data")
    names = sorted(p.relative_to(made) for p in made.rglob("*.yaml"))
    kept = [*(shipped / "models").glob("*.yaml"), shipped / "gpus.yaml"]
    assert names == sorted(p.relative_to(shipped) for p in kept)
    for name in names:
        assert (made / name).read_bytes() == (shipped / name).read_bytes(), name


@pytest.mark.skipif(not (DATA / "traces").is_dir(), reason="SIEVE_DATA names no folder with traces")
def test_the_traffic_is_what_its_sources_give(elsewhere: Path) -> None:
    assert sieve.traces.build.main([str(DATA)]) == 0
    for path in sorted((elsewhere / "traces" / "data").iterdir()):
        assert path.read_bytes() == package_data("traces", "data", path.name).read_bytes()
    assert len(list((elsewhere / "traces" / "data").iterdir())) == 4


@pytest.mark.parametrize("builder", BUILDERS)
def test_a_builder_without_its_sources_says_what_it_takes(builder: Any, capsys: Any) -> None:
    assert builder.main([]) == 2
    assert capsys.readouterr().err.startswith(f"usage: python -m {builder.__name__} ")

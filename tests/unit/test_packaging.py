from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / ".ci" / "requirements.lock"

# Runs with the installed wheel first on the path, in a folder that is no checkout.
LOAD_SHIPPED_DATA = """
import json
import polars as pl
import sieve
import stages
import yaml
from sieve.resources import data_folder

grid_file = min(data_folder("grids").glob("*.yaml"))
table_file = min(data_folder("kernel_tables").rglob("*.parquet"))
print(json.dumps({
    "sieve": sieve.__file__,
    "stages": stages.__file__,
    "grid_file": str(grid_file),
    "grid_axes": list(yaml.safe_load(grid_file.read_text(encoding="utf-8"))["axes"]),
    "table_file": str(table_file),
    "table_rows": pl.read_parquet(table_file).height,
}))
"""


def run_quietly(*command: str | Path, **options: object) -> str:
    """Return the command's stdout; on failure show everything that it printed."""
    done = subprocess.run(
        [str(part) for part in command],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        **options,
    )
    assert done.returncode == 0, (
        f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    )
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run_quietly(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


def pinned_versions() -> dict[str, list[str]]:
    """Return the versions that the lock pins, by normalised distribution name."""
    versions: dict[str, list[str]] = {}
    pin = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)
    for name, version in pin.findall(LOCK.read_text(encoding="utf-8")):
        versions.setdefault(canonicalize_name(name), []).append(version)
    return versions


def declared_requirements() -> list[Requirement]:
    """Return the requirements that pyproject.toml names: to build, to run and of every extra."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = declared["project"]["optional-dependencies"].values()
    groups = [declared["build-system"]["requires"], declared["project"]["dependencies"], *extras]
    return [Requirement(line) for group in groups for line in group]


def test_the_lock_pins_every_declared_dependency_within_its_bounds() -> None:
    pinned = pinned_versions()
    faults = [
        f"{requirement}: locked {pinned.get(canonicalize_name(requirement.name), 'not at all')}"
        for requirement in declared_requirements()
        if not pinned.get(canonicalize_name(requirement.name))
        or not all(map(requirement.specifier.contains, pinned[canonicalize_name(requirement.name)]))
    ]
    assert not faults, "run `make lock`:\n" + "\n".join(faults)


def test_every_pin_carries_a_hash() -> None:
    blocks = re.split(r"\n(?=[A-Za-z0-9])", LOCK.read_text(encoding="utf-8"))
    unhashed = [
        block.split()[0] for block in blocks if "==" in block and "--hash=sha256:" not in block
    ]
    assert not unhashed


@pytest.mark.wheel
@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        (r"sieve/__init__\.py", "the package"),
        (r"sieve/cli/main\.py", "the command"),
        (r"stages/s1_validity\.py", "the stages"),
        (r"sieve/_data/grids/.+\.yaml", "grids"),
        (r"sieve/_data/kernel_tables/.+\.parquet", "kernel tables"),
        (r"sieve/_data/kernel_tables/.*provenance\.yaml", "the origin of the kernel tables"),
        (r"sieve/_data/examples/.+\.yaml", "example specs"),
        (r"sieve/catalog/data/.+\.yaml", "catalogues"),
        (r"sieve/traces/data/.+", "traffic statistics"),
        (r"sieve/report/templates/.+", "report templates"),
        (r"[^/]+\.dist-info/licenses/LICENSE", "the licence"),
        (r"[^/]+\.dist-info/licenses/NOTICE", "the notice"),
    ],
)
def test_the_wheel_contains(wheel: Path, pattern: str, what: str) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert any(re.fullmatch(pattern, name) for name in names), (
        f"{what} missing: nothing matches {pattern}"
    )


@pytest.mark.wheel
def test_the_wheel_carries_no_tests_caches_or_duplicates(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    stray = [
        name
        for name in names
        if "__pycache__" in name or name.startswith(("tests/", "grids/", "reports/"))
    ]
    assert not stray


@pytest.mark.wheel
def test_the_installed_wheel_loads_its_own_grid_and_kernel_table(
    wheel: Path, tmp_path: Path
) -> None:
    target = tmp_path / "installed"
    install = [
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
        "--target",
        target,
        wheel,
    ]
    run_quietly(sys.executable, "-m", "pip", *install, cwd=tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    loaded = json.loads(
        run_quietly(sys.executable, "-c", LOAD_SHIPPED_DATA, cwd=tmp_path, env=environment)
    )
    for key in ("sieve", "stages", "grid_file", "table_file"):
        assert Path(loaded[key]).is_relative_to(target), f"{key} came from {loaded[key]}"
    assert "tp" in loaded["grid_axes"]
    assert loaded["table_rows"] > 0

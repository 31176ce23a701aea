"""`sieve tables`: what the measured kernels cover, and bringing in others."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sieve.cli.completing import complete_gpu
from sieve.cli.following import next_command
from sieve.cli.output import JsonFlag, print_json

if TYPE_CHECKING:
    from sieve.catalog.architecture import Gpu
    from sieve.perf.coverage import Coverage

app = typer.Typer(
    name="tables",
    help="Measured kernels: coverage, origin, import of others.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Folder = Annotated[
    Path | None,
    typer.Option("--tables", help="A folder of imported tables in place of the shipped ones."),
]


@app.command("list")
def list_tables(tables: Folder = None, as_json: JsonFlag = False) -> None:
    """List the GPUs that have measured kernels, with operations, rows and sources.

    Example: `sieve tables list`
    """
    from sieve.report.tables import print_systems

    systems = [_system(path) for path in _folders(tables)]
    if as_json:
        print_json(systems)
    else:
        print_systems(systems)
        if systems:
            next_command("tables", "show", systems[0]["gpu"])
        else:
            next_command("tables", "import", "--help")


@app.command("show")
def show(
    gpu: Annotated[
        str,
        typer.Argument(
            help="GPU of the catalogue; aliases too.", metavar="GPU", autocompletion=complete_gpu
        ),
    ],
    table: Annotated[
        str | None, typer.Option("--table", help="One operation in detail, such as gemm.")
    ] = None,
    tables: Folder = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what the kernels of a GPU cover, where they come from and what the audit found.

    Examples: `sieve tables show H100-SXM-80GB` | `sieve tables show l40s --table nccl`
    """
    from sieve.catalog.accelerators import load_gpu
    from sieve.errors import TableError
    from sieve.perf.coverage import cover
    from sieve.perf.table_schema import OPERATIONS
    from sieve.report.tables import print_coverage, print_table

    found = load_gpu(gpu)
    folder = _folder_of(found, tables)
    covered = [] if folder is None else cover(folder)
    if table is not None:
        if table not in OPERATIONS:
            raise TableError(f"no operation {table!r}; operations are {', '.join(OPERATIONS)}")
        covered = [entry for entry in covered if entry.op == table]
    if as_json:
        print_json(_document(found, folder, covered))
    elif table is not None and covered:
        print_table(found, covered[0])
        next_command("tables", "show", found.name)
    else:
        print_coverage(found, covered, table)
        first = [covered[0].op] if covered else []
        following = ["show", found.name, "--table", *first] if first else ["list"]
        next_command("tables", *following)


@app.command("import")
def import_(
    path: Annotated[Path, typer.Argument(help="Folder to read.", metavar="PATH")],
    gpu: Annotated[str, typer.Option("--gpu", help="GPU that the kernels were measured on.")],
    into: Annotated[Path, typer.Option("--into", help="Folder of tables to write.", metavar="DIR")],
    as_json: JsonFlag = False,
) -> None:
    """Read measured kernels into tables that a run can use by `kernel_tables: DIR`.

    PATH holds the systems data of an installed aiconfigurator-core, Vidur profiles, or tables named
    after their operation (docs/kernel_tables.md).
    Example: `sieve tables import .venv/lib/python3.12/site-packages/aiconfigurator_core --gpu
    H100-SXM-80GB --into my_tables`
    """
    from sieve.catalog.accelerators import load_gpu
    from sieve.perf.coverage import cover
    from sieve.perf.table_folder import import_into
    from sieve.report.tables import print_import

    done = import_into(path, load_gpu(gpu), into)
    covered = cover(done.folder)
    if as_json:
        document = _document(done.gpu, done.folder, covered)
        document["folder"] = str(done.folder)
        document["format"] = done.result.layout
        document["skipped"] = [{"file": f, "reason": why} for f, why in done.result.skipped]
        print_json(document)
    else:
        print_import(done, covered, into)
        next_command("tables", "show", done.gpu.name, "--tables", into)


def _folders(tables: Path | None) -> list[Path]:
    """Return the folders of systems, shipped or imported, by name."""
    from sieve.errors import TableError
    from sieve.resources import data_folder

    root = data_folder("kernel_tables") if tables is None else tables
    if not root.is_dir():
        raise TableError(f"{root}: no such folder of kernel tables")
    return sorted(path for path in root.iterdir() if (path / "provenance.yaml").is_file())


def _folder_of(gpu: Gpu, tables: Path | None) -> Path | None:
    from sieve.perf.kernel_table import system_folder
    from sieve.perf.table_folder import with_tables

    if tables is not None:
        gpu = with_tables({gpu.name: gpu}, tables)[gpu.name]
    return system_folder(gpu.kernel_system)


def _system(folder: Path) -> dict[str, Any]:
    """Return one row of the list."""
    from sieve.perf.coverage import cover
    from sieve.perf.kernel_table import read_provenance

    covered = cover(folder)
    sources: dict[str, int] = {}
    for entry in covered:
        for name, rows in entry.sources().items():
            sources[name] = sources.get(name, 0) + rows
    return {
        "system": folder.name,
        "gpu": str(read_provenance(folder).get("gpu") or ""),
        "operations": [entry.op for entry in covered],
        "rows": sum(entry.rows for entry in covered),
        "condemned_rows": sum(entry.condemned for entry in covered),
        "bytes": sum(entry.bytes for entry in covered),
        "sources": dict(sorted(sources.items(), key=lambda item: -item[1])),
    }


def _document(gpu: Gpu, folder: Path | None, covered: list[Coverage]) -> dict[str, Any]:
    """Return the JSON of `show`."""
    from sieve.perf.kernel_table import read_provenance

    record = {} if folder is None else read_provenance(folder)
    return {
        "gpu": gpu.name,
        "system": "" if folder is None else folder.name,
        "source": record.get("source"),
        "known_defects": record.get("known_defects") or [],
        "operations": [
            {**asdict(entry), "rows": entry.rows, "condemned_rows": entry.condemned}
            for entry in covered
        ],
    }

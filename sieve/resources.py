"""Where packaged data lies: in the wheel, or in a checkout."""

from __future__ import annotations

from pathlib import Path

from sieve.errors import SieveError


def data_folder(name: str) -> Path:
    """Return the folder `grids`, `kernel_tables` or `examples`.

    The wheel carries them under `sieve/_data`; a checkout has them at its top.

    Raises:
        SieveError: neither exists, so the installation is incomplete.
    """
    package = Path(__file__).parent
    for folder in (package / "_data" / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise SieveError(
        f"the data folder {name!r} is missing from this installation; reinstall sieve-sizing"
    )


def package_data(*parts: str) -> Path:
    """Return a path below the `sieve` package itself."""
    return Path(__file__).parent.joinpath(*parts)


def exists(path: Path) -> bool:
    """Return whether something is at `path`; a name that no file system takes is nothing."""
    try:
        return path.exists()
    except (OSError, ValueError):  # too long, or with a null character
        return False

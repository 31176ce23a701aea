"""Hold the repository to its size limits: no heavy file, no Python file that should be two.

Looks at every file that git tracks or would track. Exit code 0 when all are within the limits,
else 1.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_BYTES = 2_000_000
MAX_KERNEL_TABLE_BYTES = 3_000_000
MAX_PYTHON_LINES = 500
MAX_KERNEL_LINES = 1_100
KERNELS = Path("sieve/sim/_kernels")
# A compiled loop keeps its state in local variables, so it is one function.


def repository_files() -> list[Path]:
    """Return the tracked files and the new ones that no ignore rule covers."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    names = sorted({name for name in listed.stdout.split("\0") if name})
    return [Path(name) for name in names if (ROOT / name).is_file()]


def faults(path: Path) -> Iterator[str]:
    """Yield one message per limit that the file at `path`, relative to the root, exceeds."""
    file = ROOT / path
    is_kernel_table = path.parts[0] == "kernel_tables" and path.suffix == ".parquet"
    max_bytes = MAX_KERNEL_TABLE_BYTES if is_kernel_table else MAX_BYTES
    num_bytes = file.stat().st_size
    if num_bytes > max_bytes:
        yield f"{path}: {num_bytes:,} bytes, allowed are {max_bytes:,}; store less of it"
    if path.suffix == ".py":
        num_lines = len(file.read_text(encoding="utf-8").splitlines())
        max_lines = MAX_KERNEL_LINES if path.parent == KERNELS else MAX_PYTHON_LINES
        if num_lines > max_lines:
            yield f"{path}: {num_lines} lines, allowed are {max_lines}; split it by noun"


def main() -> int:
    """Report every fault on stderr and return the exit code."""
    if not (ROOT / ".git").exists():
        sys.stderr.write("file sizes: not a git checkout, nothing to check\n")
        return 0
    messages = [message for path in repository_files() for message in faults(path)]
    for message in messages:
        sys.stderr.write(message + "\n")
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main())

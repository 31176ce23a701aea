"""Compiled code is kept under a name made from all kernel sources."""

from __future__ import annotations

import os
import subprocess
import sys

from sieve.sim._kernels import source_hash


def test_an_edit_in_any_kernel_file_is_another_name(tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    (tmp_path / "b.py").write_text("y = 1\n")
    first = source_hash(tmp_path)
    assert source_hash(tmp_path) == first
    (tmp_path / "b.py").write_text("y = 2\n")
    second = source_hash(tmp_path)
    assert second != first
    (tmp_path / "b.py").rename(tmp_path / "c.py")
    assert source_hash(tmp_path) not in {first, second}


def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    code = "from sieve.sim import _kernels; print(_kernels._FOLDER, _kernels.is_compiled())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "NUMBA_CACHE_DIR": str(blocked / "below")},
    )  # fmt: skip
    assert done.stdout.split() == ["None", "False"]

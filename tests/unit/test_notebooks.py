"""The notebooks run from top to bottom, without a network, in a process of their own."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
NOTEBOOKS = {
    "size_a_chat_service": "clears every objective",
    "read_a_report": "USD per GPU-hour",
    "calibrate": "corrections merged into",
}


def test_every_notebook_is_known() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(NOTEBOOKS)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_and_says_what_it_is_about(name: str, tmp_path: Path) -> None:
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    text = "\n".join(
        str(output.get("text", "")) + str(output.get("data", {}))
        for cell in notebook.cells
        for output in cell.get("outputs", [])
    )
    assert NOTEBOOKS[name] in text
    assert not list(tmp_path.rglob("*.json"))  # a notebook writes nothing by itself

"""What the documents show works: their commands run, their specs and grids load."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sieve.cli.main import app
from sieve.jobs.batch import check_jobs
from sieve.spec import load_spec, parse_yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(page.read_text()) if found == language]


COMMANDS = [
    line.removeprefix("$ ")
    for page in (
        ROOT / "README.md",
        *(ROOT / "docs" / f"{name}.md" for name in ("replay", "plan", "traffic")),
    )
    for text in blocks(page, "console")
    for line in text.splitlines()
    if line.startswith("$ sieve ")
]
FRAGMENTS = [
    pytest.param(text, id=f"{page.name}-{i}")
    for page in PAGES
    for i, text in enumerate(blocks(page, "yaml"))
]
BASE = {
    "name": "docs",
    "model": "Qwen/Qwen3-8B",
    "traffic": {"trace": "chat", "requests": 50},
    "slo": {"ttft_p99": "2 s"},
    "fleet": {"gpus": ["H100-SXM-80GB"]},
}


def test_commands_of_the_documents_run(monkeypatch, tmp_path):
    """In order, in one folder, as a reader would type them; replays cut to 100 requests."""
    assert len(COMMANDS) >= 5
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for line in COMMANDS:
        args = shlex.split(line)[1:]
        if args[0] in {"run", "replay"}:
            args += ["--set", "traffic.requests=100"]
        done = CliRunner().invoke(app, args)
        assert done.exit_code in {0, 4, 5}, f"{line}: {done.output} {done.exception!r}"
        assert done.output


@pytest.mark.parametrize("text", FRAGMENTS)
def test_yaml_of_the_documents_loads(text, tmp_path):
    data = parse_yaml(text, "document")
    if "jobs" in data:
        path = tmp_path / "jobs.yaml"
        path.write_text(text)
        assert check_jobs(path)["num_bad"] == 0
        return
    spec = {**BASE, "fleet": {}, "grid": data} if "axes" in data else {**BASE, **data}
    assert load_spec(spec, base_dir=tmp_path).run.name in {"docs", "my-service"}


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.stem)
def test_examples_run(path):
    import sieve

    overrides = ["traffic.levels=[1.0]", "shortlist.size=4"]
    if path.stem != "long_prompts":
        overrides.append("traffic.requests=100")
    result = sieve.run(path, overrides=overrides)
    assert result.answer["status"] in {"answer", "weak_evidence", "no_slo"}
    assert len(result.simulations) == 4

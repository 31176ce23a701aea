"""What the documents show works: their commands run, their specs and grids load."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
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
        *(
            ROOT / "docs" / f"{name}.md"
            for name in ("replay", "fleet", "plan", "traffic", "tutorial")
        ),
        *sorted((ROOT / "docs").glob("howto_*.md")),
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
        if args[0] in {"run", "replay", "fleet"}:
            args += ["--set", "traffic.requests=100"]
        done = CliRunner().invoke(app, args)
        allowed = {0, 3, 4, 5} if args[0] == "fit" else {0, 4, 5}  # a page shows what does not fit
        assert done.exit_code in allowed, f"{line}: {done.output} {done.exception!r}"
        assert done.output


def test_the_reference_pages_are_what_the_code_says() -> None:
    script = ROOT / ".ci" / "write_reference.py"
    done = subprocess.run(
        [sys.executable, script, "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_site_builds_without_a_broken_link_or_another_host(tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", tmp_path],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = {page.name: page.read_text(encoding="utf-8") for page in tmp_path.glob("*.html")}
    assert {"index.html", "tutorial.html", "cli.html", "how_wrong.html"} <= set(pages)
    for name, text in pages.items():
        assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=[\"']?https?:", text)
        if name == "404.html":  # it names its parts from the root of a server
            continue
        hrefs = set(re.findall(r'<a [^>]*href="([^"#:]+)', text)) - {".", "https"}
        assert [href for href in sorted(hrefs) if not (tmp_path / href).is_file()] == [], name
        assert not re.findall(r"<a [^>]*>[\w./]+\.md</a>", text), f"{name}: a link shows a file"
        assert text.count('role="dialog"') == text.count('role="dialog" aria-label="Search"')
        assert not re.search(r"<pre>(?:<span></span>)?<code>", text), f"{name}: out of reach"


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
    assert len(result.simulations) == 4 * len(result.data.get("models", [path]))

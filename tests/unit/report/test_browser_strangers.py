"""Pages with texts of strangers in a real browser: nothing of theirs runs, even without the policy.

Left out by name without Chromium.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from sieve.report.html import render_report

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
TAKEN = "document.title='taken'"
PAYLOADS = (
    f"<script>{TAKEN}</script>",
    f'"><img src=x onerror="{TAKEN}">',
    f"' onmouseover='{TAKEN}' autofocus onfocus='{TAKEN}' tabindex=1 x='",
    f"</style></title></script><svg onload={TAKEN}>",
    f"</textarea><iframe srcdoc='<script>parent.{TAKEN}</script>'></iframe>",
    f"javascript:{TAKEN}",
    f"{{{{constructor.constructor('{TAKEN}')()}}}}`${{{TAKEN}}}`",
    f"]]>--><details open ontoggle={TAKEN}>",
    "\u2028\u202e&lt;script&gt;" + f"<body onload={TAKEN}>",
)
KEPT = {"status", "verdict", "candidate_id", "confidence", "schema_version", "kind", "limit"}

pytestmark = pytest.mark.skipif(BROWSER is None, reason="chromium is not on the PATH")


def spoiled(value: Any, payload: str, key: str = "") -> Any:
    """Return JSON data with the payload behind every text that no code decides by."""
    if isinstance(value, dict):
        return {k: spoiled(v, payload, k) for k, v in value.items()}
    if isinstance(value, list):
        return [spoiled(v, payload, key) for v in value]
    return value + payload if isinstance(value, str) and key not in KEPT else value


def shown(page: str, folder: Path) -> str:
    """Return the page as the browser has it, with the policy taken away: escaping has to do."""
    assert POLICY.search(page), "a page carries a policy"
    path = folder / "page.html"
    path.write_text(POLICY.sub("", page), encoding="utf-8")
    done = subprocess.run(
        [
            str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu",
            f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000", "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    return done.stdout


class Strange(HTMLParser):
    """Collects elements and attributes that no page of ours has."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [tag] if tag in {"iframe", "img", "object", "embed", "base"} else []
        self.found += [name for name, _ in attrs if name.startswith("on") or name == "srcdoc"]
        links = [value or "" for name, value in attrs if name in {"href", "src", "action"}]
        self.found += [link for link in links if link.strip().lower().startswith("javascript")]


def strange(page: str) -> list[str]:
    parser = Strange()
    parser.feed(page)
    return parser.found


def test_the_browser_would_run_such_texts(tmp_path: Path) -> None:
    """Otherwise the tests below would show nothing."""
    head = '<html><head><meta http-equiv="Content-Security-Policy" content="x"></head><body>'
    for payload in (*PAYLOADS[:2], PAYLOADS[3]):
        assert "<title>taken" in shown(f"{head}<p>{payload}</body></html>", tmp_path)


def test_a_report_runs_no_text_of_strangers(small_run: Any, tmp_path: Path) -> None:
    page = small_run.report()
    everything = "".join(PAYLOADS)
    result = spoiled(json.loads(json.dumps(small_run.data)), everything)
    hostile = render_report(result, small_run.candidates, small_run.simulations)
    found = shown(hostile, tmp_path)
    assert "<title>taken" not in found
    assert strange(found) == []
    assert hostile.count("<script") == page.count("<script")
    # The payload stands there as text, so it did reach the page.
    assert "&lt;script&gt;document.title" in hostile


def test_a_trace_page_runs_no_text_of_strangers(tmp_path: Path) -> None:
    name = "t\"><img src=x onerror=document.title='taken'><svg onload=document.title='taken'>.csv"
    rows = "".join(f"2023-11-16 18:00:0{i},{i + 9},{i + 1}\n" for i in range(9))
    (tmp_path / name).write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    page = tmp_path / "out.html"
    code = "from sieve.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "trace", "inspect", str(tmp_path / name), "--html", str(page)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = shown(page.read_text(), tmp_path)
    assert "<title>taken" not in found
    assert strange(found) == []
    assert "onerror" in found

"""The pages in a real browser: the script runs under its policy, filters work, axe finds nothing.

Left out by name without Chromium; the axe check also without `SIEVE_AXE`, the path of axe.min.js.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
AXE = os.environ.get("SIEVE_AXE")
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')

pytestmark = pytest.mark.skipif(BROWSER is None, reason="chromium is not on the PATH")


def dom(page: str, folder: Path, *, width: int = 1280) -> str:
    """Return the page as the browser has it once its scripts have run."""
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    done = subprocess.run(
        [
            str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu",
            f"--window-size={width},900",
            f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=20000", "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    return done.stdout


def driven(page: str, script: str, folder: Path, *, width: int = 1280) -> Any:
    """Return what `script` gives to `done`, run in the page with its policy taken away."""
    driver = (
        "<script>function done(v){document.body.innerHTML='<pre id=out>'+"
        "btoa(unescape(encodeURIComponent(JSON.stringify(v))))+'</pre>';}" + script + "</script>"
    )
    found = dom(POLICY.sub("", page).replace("</body>", f"{driver}</body>"), folder, width=width)
    (text,) = re.findall(r'<pre id="out">([^<]*)<', found)
    return json.loads(base64.b64decode(text))


def test_the_script_runs_under_the_pages_own_policy(small_run: Any, tmp_path: Path) -> None:
    page = small_run.report()
    assert re.search(r'<form id="filters"[^>]* hidden', page)  # without a script: no dead controls
    shown = dom(page, tmp_path)
    assert not re.search(r'<form id="filters"[^>]* hidden', shown)
    assert re.search(r"(\d+) of \1 rows shown", shown)
    assert shown.count("Save as PNG") == shown.count("<figcaption>")


def test_filters_hide_rows_and_points_alike(small_run: Any, tmp_path: Path) -> None:
    script = """
      var form = document.getElementById('filters');
      form.querySelector('[name=tied]').click();
      var rows = document.querySelectorAll('tr[data-verdict]'), points = document.querySelectorAll(
        '#pareto-num-gpus g.mark');
      function open(list, f) { return Array.prototype.filter.call(list, f).length; }
      done([open(rows, r => !r.hidden), open(rows, r => !r.hidden && r.dataset.tied !== 'yes'),
        open(points, p => p.style.display !== 'none'), rows.length]);"""
    rows, strangers, points, total = driven(small_run.report(), script, tmp_path)
    tied = len(small_run.answer["tie_group"])
    assert (rows, strangers, points, total) == (tied, 0, tied, len(small_run.data["ranking"]))


@pytest.mark.parametrize("key", ["funnel-stages", "memory-ledgers", "intervals"])
def test_a_figure_is_saved_as_both_kinds(small_run: Any, tmp_path: Path, key: str) -> None:
    script = f"""
      var files = [], chart = document.getElementById('{key}');
      HTMLAnchorElement.prototype.click = function () {{
        var name = this.download;
        fetch(this.href).then(r => r.blob()).then(b => b.slice(0, 4).text().then(head => {{
          files.push([name, b.type, head]);
          if (files.length == 2) done(files);
        }}));
      }};
      chart.closest('figure').querySelectorAll('.save button').forEach(b => b.click());"""
    found = driven(small_run.report(), script, tmp_path)
    assert sorted(found) == [
        [f"{key}.png", "image/png", "\ufffdPNG"], [f"{key}.svg", "image/svg+xml", "<svg"],
    ]  # fmt: skip


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_screen(small_run: Any, tmp_path: Path, width: int) -> None:
    script = "done([document.documentElement.scrollWidth, window.innerWidth]);"
    needed, there = driven(small_run.report(), script, tmp_path, width=width)
    assert needed <= there


def test_the_scheme_can_be_chosen(small_run: Any, tmp_path: Path) -> None:
    script = """
      function bg() { return getComputedStyle(document.body).backgroundColor; }
      document.querySelector('[value=dark]').click(); var dark = bg();
      document.querySelector('[value=light]').click(); done([dark, bg()]);"""
    assert driven(small_run.report(), script, tmp_path) == ["rgb(17, 22, 28)", "rgb(255, 255, 255)"]


@pytest.mark.skipif(AXE is None, reason="SIEVE_AXE is not set: it names axe.min.js of axe-core")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(small_run: Any, tmp_path: Path, theme: str) -> None:
    axe = Path(str(AXE)).read_text(encoding="utf-8").replace("</script", "<\\/script")
    page = small_run.report().replace("<html ", f'<html data-theme="{theme}" ', 1)
    script = (
        f"</script><script>{axe}</script><script>"
        "document.querySelectorAll('details').forEach(d => d.open = true);"
        "axe.run(document).then(r => done(r.violations.map(v => [v.impact, v.id])));"
    )
    found = driven(page, script, tmp_path)
    assert [v for v in found if v[0] in {"serious", "critical"}] == []

"""Hook of mkdocs: brings the validation pages, which lie beside `docs/`, into the site.

Links of a page to files outside the site, such as examples, become plain text there, and a link
that shows a file's name shows the page's title. What the theme leaves without a name or out of the
keyboard's reach is named and reachable.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
VALIDATION = ROOT / "reports" / "validation"
FILE_NAME = re.compile(r"\[[\w./]+\.md\]\(([\w./]+\.md)(#[\w-]+)?\)")
FOLDER = re.compile(r'<a href="reports/validation">([^<]*)</a>')
LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add `validation/NAME.md` for every page under reports/validation."""
    for path in sorted(VALIDATION.glob("*.md")):
        if path.name != "README.md":
            files.append(File.generated(config, f"validation/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Return the page with links that hold in the site and show titles."""
    below = page.file.src_uri.startswith("validation/")

    def moved(match: re.Match[str]) -> str:
        words, target = match.groups()
        place = target.removeprefix("../").removeprefix("../")
        name, _, anchor = place.partition("#")
        anchor = f"#{anchor}" if anchor else ""
        if name.startswith("reports/validation/") and (ROOT / name).is_file():
            return f"[{words}]({name.removeprefix('reports/')}{anchor})"
        if below and name.startswith("docs/") and (ROOT / name).is_file():
            return f"[{words}](../{name.removeprefix('docs/')}{anchor})"
        return words

    names = _titles(config.nav)

    def titled(match: re.Match[str]) -> str:
        target, anchor = match[1], match[2] or ""
        local = f"validation/{target}" if below and "/" not in target else target
        title = names.get(local.removeprefix("../"))
        return f"[{title}]({target}{anchor})" if title else match[0]

    return FILE_NAME.sub(titled, LINK.sub(moved, markdown))


def on_post_page(output: str, **_: Any) -> str:
    """Return the page with a name for its search and code blocks that the keyboard can scroll."""
    output = FOLDER.sub(r"\1", output)
    output = output.replace('role="dialog">', 'role="dialog" aria-label="Search">')
    output = output.replace("<pre><span></span><code>", '<pre><span></span><code tabindex="0">')
    return output.replace("<pre><code>", '<pre><code tabindex="0">')


def _titles(nav: Any) -> dict[str, str]:
    """Return the title of every page of the navigation."""
    found: dict[str, str] = {}
    for entry in nav:
        for title, below in entry.items():
            if isinstance(below, str):
                found[below] = title
            else:
                found.update(_titles(below))
    return found

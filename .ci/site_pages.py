"""Hook of mkdocs: brings the validation pages, which lie beside `docs/`, into the site.

Links of a page to files outside the site, such as examples, become plain text there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
VALIDATION = ROOT / "reports" / "validation"
LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add `validation/NAME.md` for every page under reports/validation."""
    for path in sorted(VALIDATION.glob("*.md")):
        if path.name != "README.md":
            files.append(File.generated(config, f"validation/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the page with links that hold in the site."""
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

    return LINK.sub(moved, markdown)

"""List the licence of every locked package in `docs/licences.md`, as each package states it.

    python .ci/licences.py            # write the page
    python .ci/licences.py --check    # exit 1 if a locked package is missing from it

Packages of other platforms are not installed here; they are listed without a licence.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / ".ci" / "requirements.lock"
PAGE = ROOT / "docs" / "licences.md"
HEAD = """# Licences of the packages that sieve stands on

Written by `.ci/licences.py` from what each package states about itself. sieve's own licence is
Apache-2.0; `NOTICE` names the sources of shipped data.

| package | version | licence |
|---|---|---|
"""


def locked() -> dict[str, str]:
    """Return {name: version} of the lock file."""
    pairs = re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)", LOCK.read_text(), re.MULTILINE)
    return dict(pairs)


def licence(name: str) -> str:
    """Return the licence that an installed package states."""
    try:
        facts = metadata(name)
    except PackageNotFoundError:
        return "not installed on this platform"
    stated = facts.get("License-Expression") or ""
    classifiers = [
        line.split(" :: ")[-1]
        for line in facts.get_all("Classifier") or []
        if line.startswith("License :: ") and " :: " in line.removeprefix("License :: ")
    ]
    short = (facts.get("License") or "").strip().split("\n")[0]
    return (stated or ", ".join(classifiers) or short[:80] or "not stated").replace("|", "/")


def main() -> int:
    """Write or check the page."""
    packages = locked()
    if "--check" in sys.argv:
        text = PAGE.read_text()
        missing = [name for name in packages if f"| {name} |" not in text]
        if missing:
            sys.stderr.write(f"{PAGE.name} lacks {', '.join(missing)}: run .ci/licences.py\n")
        return 1 if missing else 0
    rows = [f"| {name} | {version} | {licence(name)} |" for name, version in packages.items()]
    PAGE.write_text(HEAD + "\n".join(rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Write the reference pages that come from code: `docs/cli.md` and `docs/spec_schema.md`.

`--check` writes nothing and exits with 1 if a page is not what the code says.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def pages() -> dict[str, str]:
    """Return the text of each generated page by its name."""
    return {"cli.md": cli_page(), "spec_schema.md": schema_page()}


def cli_page() -> str:
    """Return every command with its options, as its help page has them."""
    from sieve.cli.main import app

    out = [
        "# Commands",
        "Written from the code by `.ci/write_reference.py`. Every command takes `--help`; exit "
        "codes are in [reading_a_run.md](reading_a_run.md).",
    ]
    for path, command in commands(typer.main.get_command(app)):
        out.append(f"## `sieve {' '.join(path)}`")
        for paragraph in (command.help or "").split("\n\n"):
            if paragraph.startswith("\b"):
                examples = [line.strip() for line in paragraph.splitlines()[2:]]
                out.append("```text\n" + "\n".join(examples) + "\n```")
            else:
                out.append(" ".join(paragraph.split()).replace("|", "\\|"))
        out.append("\n".join(parameters(command)))
    return "\n\n".join(out) + "\n"


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield (words, command) of every visible command in alphabetical order."""
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        elif not command.hidden:
            yield (*path, name), command


def parameters(command: Any) -> Iterator[str]:
    """Yield the rows of a command's table of arguments and options."""
    yield "| argument, option | default | meaning |"
    yield "|---|---|---|"
    for parameter in command.params:
        is_option = parameter.param_type_name == "option"
        shown = (parameter.metavar or "").strip("{}") or (parameter.name or "").upper()
        name = ", ".join(parameter.opts) if is_option else shown
        if is_option and not parameter.is_flag:
            name += f" {shown}"
        default = parameter.default
        plain = isinstance(default, str | int | float) and not isinstance(default, bool)
        text = f"`{default}`" if plain and default != "" else ""
        meaning = " ".join(str(getattr(parameter, "help", "") or "").split()).replace("|", "\\|")
        yield f"| `{name.replace('|', ' or ')}` | {text} | {meaning} |"


def schema_page() -> str:
    """Return the JSON schema of the run spec: keys as a table, then in full."""
    from sieve.spec import json_schema

    schema = json_schema()
    out = [
        "# JSON schema of the run spec",
        "Written from the code by `.ci/write_reference.py`; `sieve schema` prints it for editors. "
        "[spec.md](spec.md) explains the keys with examples.",
        "```json\n" + json.dumps(schema, indent=2, ensure_ascii=False) + "\n```",
    ]
    return "\n\n".join(out) + "\n"


def main(args: list[str]) -> int:
    """Write the pages, or with `--check` compare them."""
    stale = []
    for name, text in pages().items():
        path = ROOT / "docs" / name
        clean = re.sub(r"[ \t]+\n", "\n", text)
        if "--check" not in args:
            path.write_text(clean, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != clean:
            stale.append(name)
    for name in stale:
        sys.stderr.write(f"docs/{name} is stale; run python .ci/write_reference.py\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What comes with every command: its examples in the help page, and the command to run next."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any, TextIO

_BEGIN = re.compile(r"^\s*Examples?:", re.MULTILINE)
_COMMAND = re.compile(r"`((?:[^`|]+\|\s+)?sieve [^`]+)`")


def next_command(*words: object, file: TextIO | None = None) -> None:
    """Print the command that most people run next, quoted for a shell."""
    print(f"Next    {shlex.join(str(word) for word in ('sieve', *words))}", file=file)


def set_flags(overrides: Sequence[str] | None) -> list[str]:
    """Return `--set` options as words of a command."""
    return [word for key in overrides or () for word in ("--set", key)]


def options(**given: object) -> list[object]:
    """Return the options that were given as words of a command: `tp=2` as `--tp 2`.

    None, False and empty texts are options not given; True is an option without a value.
    """
    words: list[object] = []
    for name, value in given.items():
        if value is None or value is False or value == "":
            continue
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            whole = isinstance(value, float) and value.is_integer()
            words.append(f"{value:.0f}" if whole else value)
    return words


def help_with_examples(text: str) -> str:
    """Return a docstring as a help page whose examples stand one to a line, never rewrapped."""
    begin = _BEGIN.search(text)
    if begin is None:
        return text
    tail = text[begin.start() :]
    shown = tail.split("\n\n", 1)[0]
    commands = [" ".join(found.split()) for found in _COMMAND.findall(shown)]
    if not commands:
        return text
    rest = _COMMAND.sub("", shown).replace("|", "")
    note = " ".join(rest.split(":", 1)[1].split())
    lines = ["\b", "Examples:", *(f"  {command}" for command in commands)]
    after = tail.split("\n\n", 1)[1:]
    return "\n\n".join(
        [text[: begin.start()].rstrip(), "\n".join(lines), *([note] if note else []), *after]
    )


def add_examples(app: Any) -> None:
    """Give every command of an application, and of those below it, its examples in its help."""
    for command in app.registered_commands:
        if not command.hidden and command.callback is not None and command.callback.__doc__:
            command.help = help_with_examples(_dedent(command.callback.__doc__))
    for group in app.registered_groups:
        add_examples(group.typer_instance)


def _dedent(text: str) -> str:
    from inspect import cleandoc

    return cleandoc(text)

"""Strict YAML: duplicate keys refused, no aliases, bounded size and depth, `1e-3` is a number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

from sieve.errors import Fault, SpecError

MAX_SPEC_BYTES: Final = 1_000_000
MAX_DEPTH: Final = 30


class _StrictLoader(yaml.SafeLoader):
    """YAML 1.2 scalars, no aliases, duplicate keys collected in `faults`."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self.faults: list[Fault] = []
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, "YAML aliases are not accepted; write the value out", event.start_mark
            )
        tagged = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(tagged, "tag", None) is not None:
            raise yaml.composer.ComposerError(
                None, None, f"YAML tag {tagged.tag!r} is not accepted", tagged.start_mark
            )
        self._depth += 1
        if self._depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, f"nested deeper than {MAX_DEPTH} levels", mark
            )
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's own signature
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str | int | float | bool):
                raise yaml.constructor.ConstructorError(
                    None, None, "keys must be plain texts", key_node.start_mark
                )
            if key in seen:
                self.faults.append(
                    Fault(f"line {line}", f"key {key!r} is given twice (first on line {seen[key]})")
                )
            seen.setdefault(key, line)
        return super().construct_mapping(node, deep)


def _use_yaml12_scalars(loader: type[yaml.SafeLoader]) -> None:
    """Read only true/false as booleans and every JSON number form as a number."""
    keep = {
        first: [(tag, rx) for tag, rx in rules if tag in {"tag:yaml.org,2002:null"}]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    loader.yaml_implicit_resolvers = keep
    add = loader.add_implicit_resolver
    add("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|false|False)$"), list("tTfF"))
    add("tag:yaml.org,2002:int", re.compile(r"^[-+]?\d+$"), list("-+0123456789"))
    add(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(?:\d+\.\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+)$"),
        list("-+.0123456789"),
    )


def _construct_int(_loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = node.value
    if len(text) > 30:
        raise yaml.constructor.ConstructorError(
            None, None, f"number {text[:12]}... has {len(text)} digits", node.start_mark
        )
    return int(text)


_use_yaml12_scalars(_StrictLoader)
_StrictLoader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def parse_yaml(text: str, source: str, lines: dict[str, int] | None = None) -> Any:
    """Return the document in `text` as plain Python data.

    Args:
        text: YAML.
        source: named in errors.
        lines: filled with dotted path -> line of every key and list entry.

    Raises:
        SpecError: not YAML, duplicate keys, aliases, too deep, or more than one document.
    """
    if len(text.encode(errors="surrogatepass")) > MAX_SPEC_BYTES:
        raise SpecError(source, [Fault("", f"larger than {MAX_SPEC_BYTES:,} bytes")])
    loader = None
    try:
        loader = _StrictLoader(text)
        node = loader.get_single_node()
        data = None if node is None else loader.construct_document(node)
        if lines is not None and node is not None:
            _note_lines(node, "", lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = error.problem or "not valid YAML"
        raise SpecError(source, [Fault(where, problem)]) from None
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError(source, [Fault("", f"not valid YAML: {error}")]) from None
    finally:
        if loader is not None:
            loader.dispose()
    if loader.faults:
        raise SpecError(source, loader.faults)
    return data


def _note_lines(node: yaml.Node, path: str, lines: dict[str, int]) -> None:
    """Note the line of every key and list entry below a node."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = f"{path}.{key.value}" if path else str(key.value)
            lines[below] = key.start_mark.line + 1
            _note_lines(value, below, lines)
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            lines[f"{path}[{i}]"] = value.start_mark.line + 1
            _note_lines(value, f"{path}[{i}]", lines)


def load_mapping(path: Path, what: str, lines: dict[str, int] | None = None) -> dict[str, Any]:
    """Return the YAML mapping in the file at `path`; `what` names it in messages.

    `lines`, if given, is filled with dotted path -> line.

    Raises:
        SpecError: no such file, unreadable, or not one mapping.
    """
    source = str(path)
    if not path.exists():
        raise SpecError(source, [Fault("", f"no such {what}; check the path")])
    if not path.is_file():
        raise SpecError(source, [Fault("", f"is not a file; a {what} is one YAML file")])
    if path.stat().st_size > MAX_SPEC_BYTES:
        raise SpecError(source, [Fault("", f"larger than {MAX_SPEC_BYTES:,} bytes")])
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(source, [Fault("", f"not UTF-8 text (byte {error.start})")]) from None
    except OSError as error:
        raise SpecError(source, [Fault("", f"cannot be read: {error.strerror}")]) from None
    data = parse_yaml(text, source, lines)
    if not isinstance(data, dict):
        found = "an empty file" if data is None else f"a {type(data).__name__}"
        raise SpecError(source, [Fault("", f"found {found}, expected a mapping of keys")])
    return data

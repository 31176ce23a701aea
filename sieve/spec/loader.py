"""Strict YAML: duplicate keys refused, no aliases, bounded size and depth, `1e-3` is a number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import Resolver
from yaml.scanner import Scanner

from sieve.errors import Fault, SpecError
from sieve.resources import exists

MAX_SPEC_BYTES: Final = 1_000_000
MAX_DEPTH: Final = 30


class _Strict(Composer, SafeConstructor, Resolver):
    """YAML 1.2 scalars, no aliases, duplicate keys collected in `faults`."""

    check_event: Any
    peek_event: Any
    """Of the parser that a subclass adds."""

    def __init__(self) -> None:
        Composer.__init__(self)
        SafeConstructor.__init__(self)
        Resolver.__init__(self)
        self.faults: list[Fault] = []
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.composer.ComposerError(
                None, None, "YAML aliases are not accepted; write the value out", event.start_mark
            )
        tagged = self.peek_event()
        if getattr(tagged, "tag", None) is not None:
            raise yaml.composer.ComposerError(
                None, None, f"YAML tag {tagged.tag!r} is not accepted", tagged.start_mark
            )
        self._depth += 1
        if self._depth > MAX_DEPTH:
            mark = self.peek_event().start_mark
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


def _use_yaml12_scalars(loader: type[Resolver]) -> None:
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


def _construct_int(_loader: Any, node: yaml.ScalarNode) -> int:
    text = node.value
    if len(text) > 30:
        raise yaml.constructor.ConstructorError(
            None, None, f"number {text[:12]}... has {len(text)} digits", node.start_mark
        )
    return int(text)


_use_yaml12_scalars(_Strict)
_Strict.add_constructor("tag:yaml.org,2002:int", _construct_int)


class _StrictLoader(_Strict, Reader, Scanner, Parser):
    """The loader of specs: its messages are those of PyYAML's own parser."""

    def __init__(self, stream: str) -> None:
        Reader.__init__(self, stream)
        Scanner.__init__(self)
        Parser.__init__(self)
        _Strict.__init__(self)


if yaml.__with_libyaml__:
    from yaml.cyaml import CParser  # type: ignore[attr-defined]

    class _StreamLoader(_Strict, CParser):
        """The loader of long files: the same rules over libyaml, five times as fast."""

        def __init__(self, stream: str) -> None:
            CParser.__init__(self, stream)
            _Strict.__init__(self)

else:
    _StreamLoader = _StrictLoader  # type: ignore[misc, assignment]


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
        raise SpecError(
            source,
            [
                Fault(
                    "",
                    f"larger than {MAX_SPEC_BYTES:,} bytes; put large data into files of their own",
                )
            ],
        )
    loader = None
    try:
        loader = _StrictLoader(text)
        node = loader.get_single_node()
        data = None if node is None else loader.construct_document(node)
        if lines is not None and node is not None:
            _note_lines(node, "", lines)
    except yaml.MarkedYAMLError as error:
        raise SpecError(source, [_marked(error)]) from None
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError(source, [Fault("", f"not valid YAML: {error}")]) from None
    finally:
        if loader is not None:
            loader.dispose()
    if loader.faults:
        raise SpecError(source, loader.faults)
    return data


def stream_yaml(text: str, source: str, *, listed: str) -> Iterator[tuple[str, int, Any]]:
    """Yield (key, line, value) of the top-level mapping, and of one list an entry at a time.

    Only one entry of the list is in memory at once, and the size is the caller's to bound.

    Args:
        text: YAML.
        source: named in errors.
        listed: the key whose entries come one by one, each with this key; an empty list comes
            once, as [].

    Raises:
        SpecError: as `parse_yaml`, or the document is no mapping, or that key has no list.
    """
    loader = None
    try:
        loader = _StreamLoader(text)
        yield from _streamed(loader, source, listed)
    except yaml.MarkedYAMLError as error:
        raise SpecError(source, [_marked(error)]) from None
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError(source, [Fault("", f"not valid YAML: {error}")]) from None
    finally:
        if loader is not None:
            loader.dispose()


def _streamed(loader: Any, source: str, listed: str) -> Iterator[tuple[str, int, Any]]:
    loader.get_event()
    if loader.check_event(yaml.StreamEndEvent):
        raise SpecError(source, [Fault("", "found an empty file, expected a mapping of keys")])
    loader.get_event()
    if not loader.check_event(yaml.MappingStartEvent):
        raise SpecError(source, [Fault("", "expected a mapping of keys at the top")])
    loader.get_event()
    seen: set[str] = set()
    while not loader.check_event(yaml.MappingEndEvent):
        line = loader.peek_event().start_mark.line + 1
        key = str(_next_value(loader, source))
        if key in seen:
            raise SpecError(
                source, [Fault(f"line {line}", f"key {key!r} is given twice; keep one")]
            )
        seen.add(key)
        event = loader.peek_event()
        is_list = isinstance(event, yaml.SequenceStartEvent) and event.tag is None
        if key != listed or not is_list:
            value = _next_value(loader, source)
            if key == listed and value is not None:
                raise SpecError(source, [Fault(key, "found one value, expected a list", line)])
            yield key, line, [] if key == listed else value
            continue
        loader.get_event()
        if loader.check_event(yaml.SequenceEndEvent):
            yield key, line, []
        while not loader.check_event(yaml.SequenceEndEvent):
            line = loader.peek_event().start_mark.line + 1
            yield key, line, _next_value(loader, source)
        loader.get_event()
    loader.get_event()
    loader.get_event()
    if not loader.check_event(yaml.StreamEndEvent):
        raise SpecError(
            source,
            [Fault("", "holds more than one document; keep one, or write jobs for `sieve batch`")],
        )


def _next_value(loader: Any, source: str) -> Any:
    """Return the next node as plain data."""
    node = loader.compose_node(None, None)
    value = loader.construct_document(node)
    loader.anchors = {}
    if loader.faults:
        raise SpecError(source, loader.faults)
    return value


def _marked(error: yaml.MarkedYAMLError) -> Fault:
    mark = error.problem_mark or error.context_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return Fault(where, error.problem or "not valid YAML")


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
    if not exists(path):
        raise SpecError(source, [Fault("", f"no such {what}; check the path")])
    if not path.is_file():
        raise SpecError(source, [Fault("", f"is not a file; a {what} is one YAML file")])
    if path.stat().st_size > MAX_SPEC_BYTES:
        raise SpecError(
            source,
            [
                Fault(
                    "",
                    f"larger than {MAX_SPEC_BYTES:,} bytes; put large data into files of their own",
                )
            ],
        )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(
            source, [Fault("", f"not UTF-8 text (byte {error.start}); save it as UTF-8")]
        ) from None
    except OSError as error:
        raise SpecError(source, [Fault("", f"cannot be read: {error.strerror}")]) from None
    data = parse_yaml(text, source, lines)
    if not isinstance(data, dict):
        found = "an empty file" if data is None else f"a {type(data).__name__}"
        raise SpecError(source, [Fault("", f"found {found}, expected a mapping of keys")])
    return data

"""Strict YAML."""

from __future__ import annotations

from pathlib import Path

import pytest

from sieve.errors import SpecError
from sieve.spec import load_mapping, parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 100_000.0),
        ("-2.5e3", -2500.0),
        (".5", 0.5),
        ("7", 7),
        ("-7", -7),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("off", "off"),
        ("1_000", "1_000"),
        ("0x10", "0x10"),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        (".nan", ".nan"),
        ("2 s", "2 s"),
        ("'1'", "1"),
    ],
)
def test_scalars_mean_what_they_look_like(text: str, value: object) -> None:
    data = parse_yaml(f"a: {text}", "t.yaml")
    assert data == {"a": value}
    assert type(data["a"]) is type(value)


def test_a_duplicate_key_names_both_lines() -> None:
    with pytest.raises(SpecError) as caught:
        parse_yaml("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\na: 2\n", "t.yaml")
    texts = [str(fault) for fault in caught.value.faults]
    assert len(texts) == 2
    assert any("line 5" in t and "'c'" in t and "line 3" in t for t in texts)
    assert any("line 6" in t and "'a'" in t and "line 1" in t for t in texts)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: &x 1\nb: *x", "alias"),
        ("a: &x {b: 1}\nc: *x", "alias"),
        ("[" * 40, "deeper"),
        ("{a: " * 40, "deeper"),
        ("a:\n\t- 1", "tab|\\\\t"),
        ("\ta: 1", "tab|\\\\t"),
        ("a: 1\n---\nb: 2", "another document"),
        ("a: '", "unexpected end"),
        ("a: !!python/object/apply:os.system [x]", "tag .*not accepted"),
        ("a: !thing 1", "tag .*not accepted"),
        ("? [1, 2]\n: x", "plain texts"),
        ("~: x", "plain texts"),
        ("a: \0", "not valid YAML"),
        (f"a: {'9' * 31}", "31 digits"),
        (f"a: {'9' * 5000}", "5000 digits"),
        ("a: !!int abc", "tag .*not accepted"),
    ],
)
def test_refused_with_a_message(text: str, complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint) as caught:
        parse_yaml(text, "t.yaml")
    assert str(caught.value).startswith("t.yaml: 1 fault\n")


@pytest.mark.parametrize("text", ["a: !!bool xyz", "a: !!timestamp abc", "a: \ud800"])
def test_a_value_that_breaks_the_parser_is_bad_input_too(text: str) -> None:
    with pytest.raises(SpecError):
        parse_yaml(text, "t.yaml")


def test_an_alias_bomb_is_refused_at_once() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(SpecError, match="line 2"):
        parse_yaml("\n".join(lines), "t.yaml")


def test_thirty_levels_are_accepted() -> None:
    deep = parse_yaml("[" * 29 + "1" + "]" * 29, "t.yaml")
    for _ in range(29):
        (deep,) = deep
    assert deep == 1


def test_a_text_of_more_than_a_megabyte_is_refused() -> None:
    with pytest.raises(SpecError, match="1,000,000 bytes"):
        parse_yaml("a: " + "x" * 1_000_001, "t.yaml")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "an empty file"),
        (b"# only a comment\n", "an empty file"),
        (b"- a\n- b\n", "a list"),
        (b"just text\n", "a str"),
        (b"name: caf\xe9\n", "not UTF-8 text .byte 9."),
        (b"\xff\xfen\0a\0", "not UTF-8"),
    ],
)
def test_a_file_that_is_no_mapping(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=complaint) as caught:
        load_mapping(path, "run spec")
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no such run spec"):
        load_mapping(tmp_path / "none.yaml", "run spec")
    with pytest.raises(SpecError, match="is not a file"):
        load_mapping(tmp_path, "run spec")


def test_a_large_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(b"#" * 1_000_001)
    with pytest.raises(SpecError, match="larger than"):
        load_mapping(path, "run spec")


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    path = tmp_path / "spec.yaml"
    path.write_text(f"a: !!python/object/apply:os.mkdir ['{mark}']\n", encoding="utf-8")
    with pytest.raises(SpecError):
        load_mapping(path, "run spec")
    assert not mark.exists()

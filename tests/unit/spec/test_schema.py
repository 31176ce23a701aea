"""The JSON schema of the run spec, used by editors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sieve.spec import json_schema, load_mapping

EXAMPLE = Path(__file__).parents[2] / "data" / "example_spec.yaml"
TYPES = {"string", "number", "integer", "boolean", "array", "object", "null"}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return json_schema()


def nodes(schema: Any, path: str = "#") -> Iterator[tuple[str, Any]]:
    if isinstance(schema, dict):
        yield path, schema
        for key, value in schema.items():
            yield from nodes(value, f"{path}/{key}")
    elif isinstance(schema, list):
        for i, value in enumerate(schema):
            yield from nodes(value, f"{path}/{i}")


def accepts(schema: dict[str, Any], node: dict[str, Any], value: Any) -> bool:
    """A small validator: types, keys, alternatives and constants."""
    if "$ref" in node:
        return accepts(schema, schema["$defs"][node["$ref"].rsplit("/", 1)[1]], value)
    if "anyOf" in node:
        return any(accepts(schema, option, value) for option in node["anyOf"])
    if "const" in node or "enum" in node:
        return value in node.get("enum", [node.get("const")])
    kinds = {
        "string": isinstance(value, str),
        "number": isinstance(value, int | float) and not isinstance(value, bool),
        "integer": isinstance(value, int) and not isinstance(value, bool),
        "boolean": isinstance(value, bool),
        "array": isinstance(value, list),
        "object": isinstance(value, dict),
        "null": value is None,
    }
    if "type" in node and not kinds[node["type"]]:
        return False
    if isinstance(value, list) and "prefixItems" in node:
        return len(value) == len(node["prefixItems"]) and all(
            accepts(schema, item, part)
            for item, part in zip(node["prefixItems"], value, strict=True)
        )
    if isinstance(value, list) and "items" in node:
        return all(accepts(schema, node["items"], item) for item in value)
    if isinstance(value, dict) and "properties" in node:
        extra = set(value) - set(node["properties"])
        if extra and node.get("additionalProperties") is False:
            return False
        if not set(node.get("required", [])) <= set(value):
            return False
        return all(
            accepts(schema, node["properties"][key], item)
            for key, item in value.items()
            if key in node["properties"]
        )
    return True


def test_it_is_a_json_schema(schema: dict[str, Any]) -> None:
    assert json.loads(json.dumps(schema)) == schema
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert (schema["type"], schema["additionalProperties"]) == ("object", False)
    assert {"name", "traffic", "slo"} <= set(schema["required"])
    for path, node in nodes(schema):
        if "$ref" in node:
            assert node["$ref"].removeprefix("#/$defs/") in schema["$defs"], path
        if isinstance(node.get("type"), str) and "properties" not in path.rsplit("/", 1)[-1]:
            assert node["type"] in TYPES, path
        if "properties" in node and path.rsplit("/", 1)[-1] != "properties":
            assert set(node.get("required", [])) <= set(node["properties"]), path


def test_every_documented_key_is_described(schema: dict[str, Any]) -> None:
    documented = {
        "name", "model", "engine", "traffic", "slo", "fleet", "grid", "batch_sizing", "shortlist",
        "rank", "seed",
    }  # fmt: skip
    assert documented <= set(schema["properties"])
    for name in ("TrafficSpec", "FleetSpec", "ShortlistSpec", "RankSpec"):
        definition = schema["$defs"][name]
        assert definition["additionalProperties"] is False
        assert all(item.get("description") for item in definition["properties"].values())


def test_the_example_is_accepted_and_a_slip_is_not(schema: dict[str, Any]) -> None:
    example = load_mapping(EXAMPLE, "run spec")
    assert accepts(schema, schema, example)
    assert not accepts(schema, schema, {**example, "modle": "x"})
    assert not accepts(schema, schema, {k: v for k, v in example.items() if k != "slo"})
    assert not accepts(schema, schema, {**example, "seed": "zero"})


@pytest.mark.parametrize(
    "traffic",
    [
        {"trace": "chat", "rate_per_s": "12/s"},
        {"trace": "chat", "window_s": [0, "30 min"]},
        {"synthetic": {"isl": 200, "osl": 20, "arrival": {"poisson_per_s": 4}}},
    ],
)
def test_what_the_tool_reads_the_schema_accepts(
    schema: dict[str, Any], traffic: dict[str, Any]
) -> None:
    example = load_mapping(EXAMPLE, "run spec") | {"traffic": traffic}
    assert accepts(schema, schema, example)

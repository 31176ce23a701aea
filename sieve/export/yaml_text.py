"""YAML and JSON documents as text, checked against their schema, and read back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from sieve.errors import ExportError

_DUMPER: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class Fields(BaseModel):
    """Fields of a manifest that are used here; any other is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, populate_by_name=True)


def write_yaml(
    documents: Sequence[dict[str, Any]], schemas: Sequence[type[BaseModel]], comments: Sequence[str]
) -> str:
    """Return documents as YAML below comment lines.

    Raises:
        ExportError: a document that its schema refuses.
    """
    for document, schema in zip(documents, schemas, strict=True):
        validate(document, schema)
    head = "".join(f"# {' '.join(line.split())}\n" for line in comments)
    body = yaml.dump_all(
        documents, Dumper=_DUMPER, sort_keys=False, allow_unicode=False, width=10_000
    )
    return head + str(body)


def write_json(document: Any, schema: type[BaseModel] | None = None) -> str:
    """Return a document as JSON."""
    if schema is not None:
        validate(document, schema)
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def validate(document: Any, schema: type[BaseModel]) -> None:
    """Hold a document to its schema.

    Raises:
        ExportError: names the fields.
    """
    try:
        schema.model_validate(document)
    except ValidationError as error:
        faults = "; ".join(
            f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:5]
        )
        raise ExportError(f"{schema.__name__}: {faults}") from None


def read_yaml(text: str) -> list[dict[str, Any]]:
    """Return the documents of a YAML text."""
    return list(yaml.load_all(text, Loader=_LOADER))

"""The `traffic` of a spec on its own, as the trace commands take it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from sieve.errors import Fault, SpecError
from sieve.spec.models import TrafficSpec


def parse_traffic(keys: Mapping[str, Any], source: str = "traffic") -> TrafficSpec:
    """Return the validated keys.

    Raises:
        SpecError: lists every fault with its path.
    """
    try:
        return TrafficSpec.model_validate(dict(keys))
    except ValidationError as error:
        faults = [
            Fault(".".join(map(str, entry["loc"])), str(entry["msg"]).removeprefix("Value error, "))
            for entry in error.errors(include_url=False)
        ]
        raise SpecError(source, faults) from None

"""The run spec and the grid file: strict YAML, every fault at once, quantities with units."""

from sieve.spec.loader import load_mapping, parse_yaml
from sieve.spec.models import (
    ArrivalSpec,
    AxisSpec,
    FleetSpec,
    GridSpec,
    LengthSpec,
    RankSpec,
    RunSpec,
    ShortlistSpec,
    SyntheticSpec,
    TrafficSpec,
)
from sieve.spec.resolve import ResolvedSpec, is_path, json_schema, load_spec, load_specs, path_label
from sieve.spec.slo import LatencyLimits, Slo, SloSet

__all__ = [
    "ArrivalSpec",
    "AxisSpec",
    "FleetSpec",
    "GridSpec",
    "LatencyLimits",
    "LengthSpec",
    "RankSpec",
    "ResolvedSpec",
    "RunSpec",
    "ShortlistSpec",
    "Slo",
    "SloSet",
    "SyntheticSpec",
    "TrafficSpec",
    "is_path",
    "json_schema",
    "load_mapping",
    "load_spec",
    "load_specs",
    "parse_yaml",
    "path_label",
]

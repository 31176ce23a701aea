"""From a file or mapping to a resolved spec: overrides, grid file, merge, every fault at once."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from sieve.catalog.models import config_file
from sieve.errors import Fault, SpecError
from sieve.resources import data_folder, exists
from sieve.spec.loader import load_mapping, parse_yaml
from sieve.spec.models import FleetSpec, GridSpec, RunSpec, StrictModel
from sieve.spec.presets import find_spec
from sieve.spec.slo import SloSet, parse_slos

T = TypeVar("T", bound=StrictModel)
DEFAULT_ENGINE = "vllm"
_WANTED = {
    "string_type": "a text", "int_type": "a whole number", "float_type": "a number",
    "bool_type": "true or false", "list_type": "a list", "dict_type": "a mapping",
    "tuple_type": "a list", "model_type": "a mapping", "model_attributes_type": "a mapping",
    "int_parsing": "a whole number", "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_pattern_mismatch": "letters, digits, dots, dashes and underscores, 100 at most",
}  # fmt: skip
"""Pydantic's kinds of error in the words of this tool."""

_USUAL_WORDS = {"preset": "trace", "qps": "rate_per_s", "rps": "rate_per_s", "gpu": "gpus"}
"""What people write for a key whose name is another."""

_FLEET_DEFAULTS = {
    "max_gpus": 8, "gpus_per_node": 8, "nodes_per_replica": 1, "tp_across_nodes": False,
    "billing": "gpu", "routing": "round_robin",
}  # fmt: skip


@dataclass(frozen=True)
class ResolvedSpec:
    """A spec with its grid merged in and every default filled.

    Attributes:
        run: the spec as written, validated.
        grid: the grid, with the spec's GPUs in place of its own where given.
        grid_name: name or path of the grid.
        model: model name or inline facts.
        engine: engine text.
        fleet: fleet with defaults filled.
        slos: parsed objectives.
        base_dir: folder that relative paths start from.
        source: file name or "spec".
    """

    run: RunSpec
    grid: GridSpec
    grid_name: str
    model: str | dict[str, Any]
    engine: str
    fleet: FleetSpec
    slos: SloSet
    base_dir: Path
    source: str

    def to_json(self) -> dict[str, Any]:
        """Return the resolved spec as JSON data, free of paths of this machine and clocks."""
        run = self.run.model_dump(mode="json", exclude_none=True)
        trace = run["traffic"].get("trace")
        if trace is not None:
            run["traffic"]["trace"] = Path(trace).name
        if self.run.kernel_tables is not None:
            run["kernel_tables"] = Path(self.run.kernel_tables).name
        run.update(
            model=self._model_name(),
            engine=self.engine,
            fleet=self.fleet.model_dump(mode="json", exclude_none=True),
            grid=self.grid.model_dump(mode="json", exclude_none=True) | {"name": self.grid_name},
            slo=self.slos.texts,
        )
        return run

    def to_rerun(self) -> dict[str, Any]:
        """Return `spec` as JSON data and the `folder` from which the same run can be made here."""
        spec = self.to_json()
        trace, tables = self.run.traffic.trace, self.run.kernel_tables
        if trace is not None:
            path = self.base_dir / trace
            spec["traffic"]["trace"] = str(path.resolve()) if path.exists() else trace
        if tables is not None:
            spec["kernel_tables"] = str((self.base_dir / tables).resolve())
        if isinstance(self.model, str) and is_path(self.model, self.base_dir):
            spec["model"] = str((self.base_dir / self.model).resolve())
        return {"spec": spec, "folder": str(self.base_dir.resolve())}

    def _model_name(self) -> str | dict[str, Any]:
        """Return the model, a path to a config.json without its folders."""
        if isinstance(self.model, str) and is_path(self.model, self.base_dir):
            return path_label(self.model)
        return self.model


def path_label(path: str) -> str:
    """Return the name of a config.json's folder, or of another file without its suffix."""
    found = Path(path)
    if found.name == "config.json" and found.parent.name:
        return found.parent.name
    return found.stem if found.suffix == ".json" else found.name


def is_path(model: str, base_dir: Path) -> bool:
    """Tell whether a model is a path to a config.json or to its folder, not a catalogue name."""
    return config_file(model, base_dir=base_dir) is not None


def load_spec(
    source: str | Path | Mapping[str, Any],
    *,
    overrides: Sequence[str] = (),
    base_dir: Path | None = None,
) -> ResolvedSpec:
    """Return the resolved spec of one model; see `load_specs`.

    Raises:
        SpecError: every fault of the spec, or of its grid file, at once; or several models.
    """
    specs = load_specs(source, overrides=overrides, base_dir=base_dir)
    if len(specs) > 1:
        text = (
            f"names {len(specs)} models; only `sieve run` ranks several. Give one "
            "of them, or in a jobs file a `sweep` over all"
        )
        raise SpecError(specs[0].source, [Fault("model", text)])
    return specs[0]


def load_specs(
    source: str | Path | Mapping[str, Any],
    *,
    overrides: Sequence[str] = (),
    base_dir: Path | None = None,
) -> list[ResolvedSpec]:
    """Return the resolved spec of a YAML file or a mapping, once for each of its models.

    Args:
        source: path of a spec file, name of a preset (`chat`), or the spec as a mapping.
        overrides: `dotted.key=value` texts, applied in order; values are read as YAML.
        base_dir: folder for relative paths; default: the file's own; of a preset or a mapping
            the current one.

    Raises:
        SpecError: every fault of the spec, or of its grid file, at once.
    """
    lines: dict[str, int] = {}
    if isinstance(source, Mapping):
        raw, name, base = dict(source), "spec", base_dir or Path.cwd()
    else:
        path = find_spec(source)
        # Of a preset nothing lies beside it: what overrides name lies where the user is.
        beside = path.parent if path == Path(source) else Path.cwd()
        raw, name, base = load_mapping(path, "run spec", lines), str(path), base_dir or beside
    for text in overrides:
        _apply_override(raw, text)
    given = [text.partition("=")[0].strip() for text in overrides]
    run, faults = _validate(RunSpec, raw)
    slos, slo_faults = parse_slos(raw["slo"]) if "slo" in raw else (SloSet(), [])
    faults += slo_faults
    if not faults and not slos.texts:
        faults.append(Fault("slo", "is empty; give at least one objective such as ttft_p99: 2 s"))
    grid, grid_name, grid_faults = _load_grid(raw.get("grid", "default"), base)
    faults += grid_faults
    if run is None or grid is None or faults:
        raise SpecError(name, [_placed(fault, lines, given) for fault in faults])
    model = run.model if run.model is not None else grid.model
    if model is None:
        raise SpecError(
            name, [Fault("model", "missing; name a model, a config.json or give facts")]
        )
    fleet = _merge_fleet(run.fleet, grid.fleet)
    if fleet.gpus is None and "gpu" not in grid.axes:
        fault = Fault("fleet.gpus", "missing; name at least one GPU (`sieve gpus` lists them)")
        raise SpecError(name, [fault])
    engine = run.engine or grid.engine or DEFAULT_ENGINE
    if faults := _node_faults(fleet, engine):
        raise SpecError(name, [_placed(fault, lines, given) for fault in faults])
    models = model if isinstance(model, list) else [model]
    return [
        ResolvedSpec(
            run=run,
            grid=grid,
            grid_name=grid_name,
            model=one,
            engine=engine,
            fleet=fleet,
            slos=slos,
            base_dir=base,
            source=name,
        )
        for one in models
    ]


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of the run spec."""
    schema = RunSpec.model_json_schema()
    lengths = schema["$defs"]["SyntheticSpec"]["properties"]
    for name in ("isl", "osl"):
        lengths[name] = {"anyOf": [{"$ref": "#/$defs/LengthSpec"}, {"type": "integer"}]}
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "sieve run spec"
    return schema


def _merge_fleet(own: FleetSpec, grid: FleetSpec | None) -> FleetSpec:
    values: dict[str, Any] = dict(_FLEET_DEFAULTS)
    for layer in (grid, own):
        if layer is not None:
            prices = values.get("usd_per_gpu_hour") or {}
            values |= {k: v for k, v in layer.__dict__.items() if v is not None}
            if prices or layer.usd_per_gpu_hour:
                values["usd_per_gpu_hour"] = prices | (layer.usd_per_gpu_hour or {})
    return FleetSpec(**values)


def _node_faults(fleet: FleetSpec, engine: str) -> list[Fault]:
    """Return what is missing or at odds where one replica may span nodes."""
    if fleet.nodes_per_replica == 1:
        if not fleet.tp_across_nodes:
            return []
        text = "has no effect while nodes_per_replica is 1; raise that or leave this out"
        return [Fault("fleet.tp_across_nodes", text)]
    faults = []
    if engine == "reference":
        text = "the plain rules of engine reference keep a replica in one node; leave it at 1"
        faults.append(Fault("fleet.nodes_per_replica", text))
    if fleet.scale_out_gbs_unidirectional is None:
        text = (
            "missing: replicas may span nodes, so the network's rate is needed, in GB/s of one "
            "GPU in one direction (a 400 Gb/s port for each GPU: 50)"
        )
        faults.append(Fault("fleet.scale_out_gbs_unidirectional", text))
    return faults


def _load_grid(value: Any, base: Path) -> tuple[GridSpec | None, str, list[Fault]]:
    if isinstance(value, Mapping):
        grid, faults = _validate(GridSpec, dict(value), "grid")
        return grid, str(value.get("name", "inline")), faults
    if not isinstance(value, str):
        return None, "", [Fault("grid", f"found {value!r}, expected a name, a path or axes")]
    folder = data_folder("grids")
    shipped = {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    path = shipped.get(value, base / value)
    if not exists(path):
        near = difflib.get_close_matches(value, shipped, n=3)
        known = ", ".join(near or shipped)
        return None, "", [Fault("grid", f"no grid or file {value!r}; grids are: {known}")]
    try:
        grid, found = _grid_file(path, path.stat().st_mtime_ns, path.stat().st_size)
    except SpecError as error:
        faults = [Fault(f"grid ({value})", str(fault)) for fault in error.faults]
        return None, value, faults
    return grid, path.stem, [replace(f, path=f"grid ({value}).{f.path}") for f in found]


@lru_cache(maxsize=32)
def _grid_file(path: Path, _changed_ns: int, _size: int) -> tuple[GridSpec | None, list[Fault]]:
    """Return the grid in a file and its faults; read once as long as the file stays as it is."""
    lines: dict[str, int] = {}
    raw = load_mapping(path, "grid file", lines)
    grid, faults = _validate(GridSpec, raw)
    return grid, [_with_line(fault, lines) for fault in faults]


def _placed(fault: Fault, lines: Mapping[str, int], given: Sequence[str]) -> Fault:
    """Return a fault with its line, or as one of an override where that is what it is about."""
    if any(re.match(rf"{re.escape(key)}(\.|\[|$)", fault.path) for key in given):
        return replace(fault, message=f"{fault.message} (given by --set)")
    return _with_line(fault, lines)


def _with_line(fault: Fault, lines: Mapping[str, int]) -> Fault:
    """Return a fault with the line of its path, or of the nearest path above it."""
    path = fault.path
    while path and fault.line is None:
        if path in lines:
            return replace(fault, line=lines[path])
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return fault


def _apply_override(raw: dict[str, Any], text: str) -> None:
    key, sign, value = text.partition("=")
    parts = key.strip().split(".")
    if not sign or not all(parts):
        raise SpecError("--set", [Fault("", f"found {text!r}, expected dotted.key=value")])
    if "[" in key:
        fault = Fault(key, "entries of a list cannot be set one by one; give the whole list")
        raise SpecError("--set", [fault])
    target = raw
    for i, part in enumerate(parts[:-1]):
        child = target.get(part)
        if child is None:
            child = {}
        if not isinstance(child, dict):
            where = ".".join(parts[: i + 1])
            raise SpecError("--set", [Fault(key, f"{where} is {child!r}, which has no keys")])
        target[part] = dict(child)
        target = target[part]
    target[parts[-1]] = parse_yaml(value, f"--set {key}")


def _validate(
    model: type[T], raw: dict[str, Any], prefix: str = ""
) -> tuple[T | None, list[Fault]]:
    """Return the validated model, or None and every fault with its dotted path."""
    try:
        return model.model_validate(raw), []
    except ValidationError as error:
        return None, _merged([_fault_of(model, item, prefix) for item in error.errors()])


def _merged(faults: Sequence[Fault]) -> list[Fault]:
    """Return one fault a path: what the members of a union expect is joined by `or`."""
    found: dict[str, list[str]] = {}
    for fault in faults:
        messages = found.setdefault(fault.path, [])
        if fault.message not in messages:
            messages.append(fault.message)
    out = []
    for path, every in found.items():
        if any(other.startswith(f"{path}[") for other in found):
            continue  # the entries say what is wrong
        messages = [message for message in every if ", expected " not in message] or every
        heads = {message.partition(", expected ")[0] for message in messages}
        if len(messages) > 1 and len(heads) == 1 and all(", expected " in m for m in messages):
            wanted = " or ".join(m.partition(", expected ")[2] for m in messages)
            head = heads.pop()
            out.append(Fault(path, f"{head}, expected {wanted}"))
        else:
            out += [Fault(path, message) for message in messages]
    return out


def _fault_of(model: type[BaseModel], item: Any, prefix: str) -> Fault:
    loc = [p for p in item["loc"][:-1] if not _is_union_tag(p)] + list(item["loc"][-1:])
    if item["type"] not in {"extra_forbidden", "missing"}:
        loc = [p for p in loc if not _is_union_tag(p)]
    path = prefix
    for part in loc:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    kind = item["type"]
    if kind == "extra_forbidden":
        allowed = _allowed_keys(model, loc[:-1])
        said = str(loc[-1])
        usual = [_USUAL_WORDS[said]] if _USUAL_WORDS.get(said) in allowed else []
        near = usual or difflib.get_close_matches(said, allowed, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"allowed are: {', '.join(allowed)}"
        return Fault(path, f"unknown key; {hint}")
    if kind == "missing":
        return Fault(path, "missing; add it")
    message = item["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if kind == "value_error":
        return Fault(path, message)
    if kind == "too_short":
        return Fault(path, "is empty; it needs at least 1 item")
    if kind == "too_long":
        return Fault(path, f"has too many entries; at most {item['ctx']['max_length']}")
    found = repr(item["input"])
    found = found if len(found) <= 60 else found[:57] + "..."
    wanted = _WANTED.get(kind, message)
    if wanted == "a list" and isinstance(item["input"], str) and len(item["input"]) <= 60:
        wanted += f", as in [{item['input']}]"
    return Fault(path, f"found {found}, expected {wanted}")


def _is_union_tag(part: Any) -> bool:
    """Tell whether a location part is pydantic's own name of a union member."""
    return isinstance(part, str) and (
        part in {"str", "int", "float", "bool"} or "[" in part or part.startswith("function-")
    )


def _allowed_keys(model: type[BaseModel], loc: Sequence[Any]) -> list[str]:
    """Return the keys of the sub-model that `loc` leads to."""
    current: Any = model
    for part in loc:
        if isinstance(part, int) or not hasattr(current, "model_fields"):
            continue
        annotation = current.model_fields[part].annotation if part in current.model_fields else None
        current = _sub_model(annotation) or current
    return sorted(current.model_fields)


def _sub_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for arg in getattr(annotation, "__args__", ()):
        found = _sub_model(arg)
        if found is not None:
            return found
    return None

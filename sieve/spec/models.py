"""The shape of a run spec and of a grid file, as frozen models that refuse unknown keys."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from sieve.errors import InvalidInput
from sieve.units import parse_quantity

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"
MAX_COUNT = 100_000_000
MAX_MODELS = 32


def _quantity(unit: str) -> BeforeValidator:
    def read(value: object) -> float:
        try:
            return parse_quantity(value, unit)
        except InvalidInput as error:
            raise ValueError(str(error)) from None

    return BeforeValidator(read)


_NUMBER_OR_TEXT = WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}]})
Seconds = Annotated[float, _quantity("s"), Field(ge=0), _NUMBER_OR_TEXT]
Rate = Annotated[float, _quantity("per_s"), Field(gt=0, le=1e9), _NUMBER_OR_TEXT]
_TEXTS = {"type": "array", "items": {"type": "string"}}
Slos = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "object"}, _TEXTS]})]
"""Read by `slo.parse_slos`, which notes its own faults."""
GridSource = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]})]
_Model = str | dict[str, Any]
ModelSource = _Model | Annotated[list[_Model], Field(min_length=1, max_length=MAX_MODELS)]
Price = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]


class StrictModel(BaseModel):
    """Frozen, unknown keys refused, no silent conversion of texts to numbers."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class LengthSpec(StrictModel):
    """A distribution of token counts, clipped to [min, max] and rounded to whole tokens."""

    distribution: Literal["constant", "uniform", "normal", "lognormal"] = "lognormal"
    """How lengths are drawn; `lognormal` fits real prompts best."""
    value: Count | None = None
    """The length of `constant`."""
    mean: Positive | None = None
    """Mean tokens of `normal` and `lognormal`."""
    stdev: Positive | None = None
    """Standard deviation in tokens of `normal` and `lognormal`."""
    min: Count = 1
    """Shortest length drawn."""
    max: Count | None = None
    """Longest length drawn; needed by `uniform`."""

    @model_validator(mode="before")
    @classmethod
    def _read_number(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            return {"distribution": "constant", "value": value}
        return value

    @model_validator(mode="after")
    def _check_parameters(self) -> LengthSpec:
        needed = {
            "constant": ("value",),
            "uniform": ("max",),
            "normal": ("mean", "stdev"),
            "lognormal": ("mean", "stdev"),
        }[self.distribution]
        missing = [key for key in needed if getattr(self, key) is None]
        if missing:
            raise ValueError(f"{self.distribution} needs {' and '.join(missing)}")
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max {self.max} is below min {self.min}")
        return self


class GammaArrivals(StrictModel):
    """Renewal arrivals with a coefficient of variation: 1 is Poisson, above 1 is bursty."""

    rate_per_s: Rate
    """Requests per second."""
    cv: Positive
    """Coefficient of variation of the gaps."""


class ArrivalSpec(StrictModel):
    """How requests arrive: exactly one of the keys."""

    poisson_per_s: Rate | None = None
    """Poisson arrivals, requests per second."""
    gamma: GammaArrivals | None = None
    """Gamma-distributed gaps."""
    constant_per_s: Rate | None = None
    """Equal gaps, requests per second."""
    closed_loop: Count | None = None
    """Users who each send the next request when the last one is answered."""
    burst: bool | None = None
    """All requests at once."""

    @model_validator(mode="after")
    def _exactly_one(self) -> ArrivalSpec:
        given = [k for k, v in self.__dict__.items() if v is not None and v is not False]
        if len(given) != 1:
            names = ", ".join(type(self).model_fields)
            raise ValueError(f"give exactly one of {names}; found {', '.join(given) or 'none'}")
        return self


class PrefixSpec(StrictModel):
    """Beginnings that prompts share, as a system prompt or a document is shared."""

    tokens: Count
    """Tokens of the shared beginning, counted in the input length."""
    groups: Count = 1
    """How many different beginnings there are; each request takes one at random."""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the requests that have one."""


class SyntheticSpec(StrictModel):
    """Traffic drawn from distributions."""

    requests: Count = 2000
    """How many requests to draw."""
    isl: LengthSpec
    """Input lengths in tokens."""
    osl: LengthSpec
    """Output lengths in tokens."""
    arrival: ArrivalSpec
    """Arrival process."""
    prefix: PrefixSpec | None = None
    """Beginnings that prompts share."""
    seed: Annotated[int, Field(ge=0)] | None = None
    """Seed of the draw; default: the spec's."""


TraceFormat = Literal[
    "access_log", "azure_csv", "bailian_trace", "burstgpt_csv", "custom", "guidellm_mooncake",
    "guidellm_synthetic", "guidellm_trace", "lengths", "llmservingsim", "mooncake_trace",
    "percentiles", "prometheus", "servegen", "sharegpt", "sieve_table", "summary", "timed_trace",
    "weka_trace",
    # names that other tools use
    "aiperf", "azure", "bailian", "burst_gpt_trace", "burstgpt", "kv_cache_tester", "mooncake",
    "synthetic_text", "trace_synthetic", "vllm_timed_trace", "weka",
]  # fmt: skip
"""Formats of traffic files; `sieve.traces.formats` reads them."""


class TrafficSpec(StrictModel):
    """The traffic: a shipped name or file (`trace`), or distributions (`synthetic`)."""

    trace: str | None = None
    """Shipped traffic (`chat`, `coding`, `rag`, `reasoning`), a file, a folder with a client
    model, or a GuideLLM specification (`prompt_tokens=512,output_tokens=128`)."""
    format: TraceFormat | None = None
    """Format of the file; detected when not given."""
    time_unit: Literal["s", "ms", "us", "ns"] | None = None
    """Unit of plain numbers in the time column of an access log."""
    columns: dict[str, str] | None = None
    """Columns of an access log: `{ts: when, in: prompt_tokens, out: ...}`; also `session`,
    `delay`, `blocks`, `id`."""
    block_tokens: Count | None = None
    """Tokens of a prefix block of an access log."""
    characters_per_token: Annotated[float, Field(gt=0, le=100)] | None = None
    """Characters of a token, for data sets that hold texts: lengths are then estimates."""
    osl: LengthSpec | None = None
    """Output lengths for a table that has none."""
    on_error: Literal["stop", "skip", "count"] | None = None
    """Rows that cannot be read: stop at the first, leave them out and say so, or count them all
    and then stop; default stop."""
    window_s: tuple[Seconds, Seconds] | None = None
    """Only requests that arrive in [start, end), seconds from the first."""
    requests: Count | None = None
    """How many requests; default 2,000 for shipped traffic, all for a file."""
    rate_per_s: Rate | None = None
    """Mean arrival rate to scale to; default: the trace's own."""
    arrival: ArrivalSpec | None = None
    """Arrival process for a table of lengths, which states none."""
    levels: Annotated[list[Positive], Field(min_length=1, max_length=50)] = [
        0.5, 0.75, 1.0, 1.25, 1.5,
    ]  # fmt: skip
    """Multipliers of the arrival rate (users when closed loop); 1.0 must be among them."""
    synthetic: SyntheticSpec | None = None
    """Traffic drawn from distributions."""

    @model_validator(mode="before")
    @classmethod
    def _lists_are_tuples(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("window_s"), list):
            return {**value, "window_s": tuple(value["window_s"])}
        return value

    @field_validator("levels")
    @classmethod
    def _check_levels(cls, levels: list[float]) -> list[float]:
        if 1.0 not in levels:
            raise ValueError("must contain 1.0: ranking and verdicts are made there")
        if len(set(levels)) != len(levels):
            raise ValueError("holds a value twice")
        if not all(0.01 <= level <= 100 for level in levels):
            raise ValueError("holds a multiplier outside 0.01 to 100")
        return levels

    @model_validator(mode="after")
    def _check(self) -> TrafficSpec:
        if (self.trace is None) == (self.synthetic is None):
            raise ValueError("give exactly one of trace and synthetic")
        if self.synthetic is not None:
            of_files = ("time_unit", "columns", "block_tokens", "characters_per_token", "osl")
            names = ("format", "requests", "arrival", "on_error", *of_files)
            spare = [k for k in names if getattr(self, k) is not None]
            if spare:
                raise ValueError(f"{', '.join(spare)} belong inside synthetic here")
        if self.window_s is not None and self.window_s[1] <= self.window_s[0]:
            raise ValueError("window_s must be [start, end] with end after start")
        return self


class FleetSpec(StrictModel):
    """The GPUs to choose from and what they cost."""

    gpus: Annotated[list[str | dict[str, Any]], Field(min_length=1)] | None = None
    """GPU names or inline facts; replaces the grid's `gpu` axis."""
    max_gpus: Count | None = None
    """Most GPUs of one deployment, all replicas together; default 8."""
    gpus_per_node: Count | None = None
    """GPUs in one node; default 8."""
    nodes_per_replica: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Most nodes that one replica may span, its pipeline stages whole; default 1."""
    tp_across_nodes: bool | None = None
    """Let the tensor ranks of a stage span nodes too; default false: it is slow."""
    scale_out_gbs_unidirectional: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Network between nodes, GB/s of one GPU in one direction (400 Gb/s: 50)."""
    usd_per_gpu_hour: dict[str, Price] | None = None
    """Your prices by GPU name; default: the dated middle of the catalogue's range."""
    billing: Literal["gpu", "node"] | None = None
    """`gpu` pays for GPUs in use, `node` for whole nodes; default `gpu`."""
    routing: (
        Literal["round_robin", "random", "least_loaded", "prefix_affinity", "session"] | None
    ) = None
    """How requests are spread over replicas; default `round_robin`."""


class ShortlistSpec(StrictModel):
    """How many candidates are replayed in detail."""

    size: Count = 20
    """Candidates that reach the replay."""
    per_family: Count = 3
    """Most of one (GPU, TP, PP, replicas) family."""
    preview: Annotated[int, Field(ge=0)] = 240
    """Candidates that race for a place in each of two rounds of short replays; 0: none do."""
    exhaustive_below: Annotated[int, Field(ge=0)] = 0
    """Replay every survivor when no more than this many remain."""


class RankSpec(StrictModel):
    """What is best, and how sure a bound must be."""

    objective: str | list[str] | dict[str, float] = "usd_per_mtok"
    """A metric, a list (lexicographic) or a mapping of weights."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.9
    """One-sided confidence of low and of high."""


class AxisSpec(StrictModel):
    """One axis of a grid with a condition."""

    values: Annotated[list[Any], Field(min_length=1)] | None = None
    """The values."""
    range: tuple[int | str, int | str] | None = None
    """All whole numbers from first to last; the last may be `max_gpus`."""
    when: dict[str, Any] | None = None
    """Other axes or `model.moe` with the values for which the axis applies."""
    otherwise: Any = None
    """The value where `when` does not hold; default: the first value."""

    @model_validator(mode="before")
    @classmethod
    def _lists_are_tuples(cls, value: Any) -> Any:
        if isinstance(value, list):
            return {"values": value}
        if isinstance(value, dict) and isinstance(value.get("range"), list):
            return {**value, "range": tuple(value["range"])}
        if not isinstance(value, dict):
            raise ValueError(  # noqa: TRY004 - pydantic gives a ValueError its path, no TypeError
                f"found {value!r}; an axis is a list, or values/range with when"
            )
        return value

    @model_validator(mode="after")
    def _one_source(self) -> AxisSpec:
        if (self.values is None) == (self.range is None):
            raise ValueError("give exactly one of values (a list that is not empty) and range")
        return self


class GridSpec(StrictModel):
    """A grid file: axes, and optionally the model, engine and fleet limits."""

    name: str | None = None
    """What the grid is called."""
    axes: Annotated[dict[str, AxisSpec], Field(min_length=1)]
    """Axis name -> values."""
    fleet: FleetSpec | None = None
    """Fleet limits; the spec's own win key by key."""
    model: ModelSource | None = None
    """Model name or inline facts, or a list of them."""
    engine: str | None = None
    """Engine profile."""


class RunSpec(StrictModel):
    """A run: model, traffic, objectives, GPUs and grid."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Names the run and its folder: letters, digits, dot, dash, underscore."""
    model: ModelSource | None = None
    """Catalogue name, a path to config.json or its folder, or inline facts; or a list of them."""
    engine: str | None = None
    """Engine profile, such as `vllm==0.33` or `reference`; default: the newest vLLM."""
    traffic: TrafficSpec
    """The traffic to serve."""
    slo: Slos
    """Objectives, which hold at load level 1.0."""
    fleet: FleetSpec = FleetSpec()
    """GPUs, limits and prices."""
    grid: GridSource = "default"
    """A grid of the tool, a path, or inline axes."""
    batch_sizing: Literal["ledger", "slim"] = "ledger"
    """How stage 3 sizes the batch."""
    load_bytes: Literal["peak", "resident"] = "peak"
    """Whether stage 2 charges weights at their loading peak (int8: two bytes) or resident."""
    kernel_tables: str | None = None
    """A folder written by `sieve tables import`, used for the GPUs in it; default: the shipped."""
    shortlist: ShortlistSpec = ShortlistSpec()
    """The cut before the replay."""
    rank: RankSpec = RankSpec()
    """Objective and confidence."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    """Seed of everything that is drawn."""

"""The parts of `result.json` that a plan reads, as strict models: anything else is refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from sieve.spec.models import NAME_PATTERN


class Part(BaseModel):
    """A part of the result; keys that a plan does not read are left alone."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


Size = Annotated[int, Field(ge=1, le=1_000_000_000)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Key = Annotated[str, Field(pattern=r"^[^/\\\x00-\x1f.][^/\\\x00-\x1f]{0,239}$")]
"""A candidate's id: also the name of its folder."""
Word = Annotated[str, Field(min_length=1, max_length=1000)]


class Interval(Part):
    """An estimate."""

    low: Finite | None = None
    mid: Finite | None = None
    high: Finite | None = None


class Entry(Part):
    """One line of the ranking."""

    rank: Size
    tie_group: Size
    candidate_id: Key
    gpu: Word
    tp: Size
    pp: Size
    ep: Size
    replicas: Size
    num_gpus: Size
    weight_dtype: Word
    kv_cache_dtype: Word
    max_num_seqs: Size
    max_num_batched_tokens: Size
    verdict: Literal["clears", "point_only", "misses"]
    options: dict[str, Any] = {}
    output_tokens_per_s: Interval
    usd_per_mtok: Interval
    evidence: str


class Settle(Part):
    """The benchmark that separates the leaders."""

    candidate_ids: Annotated[list[Key], Field(min_length=2, max_length=2)]
    level: Finite
    metric: Word
    decides_at: Finite
    num_requests: Size
    chance: Annotated[float, Field(ge=0, le=1)]


class Answer(Part):
    """The answer; without a status the run was stopped early."""

    status: Literal["answer", "no_fit", "no_slo", "weak_evidence"] | None
    fewest_gpus: Key | None = None
    best_per_gpu: Key | None = None
    cheapest: Key | None = None
    tie_group: list[Key] = []
    settle: Settle | None = None


class Traffic(Part):
    """The traffic that was replayed."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    num_requests: Size
    users: Size | None
    block_tokens: Literal[16, 512] | None


class Serving(Part):
    """What starts the engines."""

    model: Word | None
    checkpoint_dtype: Word
    engine: Word
    engine_version: Annotated[str, Field(pattern=r"^(\d{1,4}(\.\d{1,4}){0,3})?$")]
    traffic: Traffic


class Fleet(Part):
    """Where replicas may stand and how requests reach them."""

    gpus_per_node: Size
    nodes_per_replica: Size
    tp_across_nodes: bool
    routing: Word


class Rank(Part):
    """What is best, and how sure the ends are."""

    objective: str | list[str] | dict[str, float]
    confidence: Annotated[float, Field(gt=0.5, lt=1)]


class Spec(Part):
    """The resolved spec."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    slo: Annotated[list[str], Field(min_length=1)]
    fleet: Fleet
    rank: Rank


class StageRecord(Part):
    """A stage: how many it left, and why others went."""

    number: Size
    name: Word
    num_in: int
    num_admitted: int
    reasons: dict[str, int]


class Record(Part):
    """A finished run."""

    schema_version: str
    sieve_version: str
    spec: Spec
    serving: Serving
    stages: list[StageRecord]
    answer: Answer
    ranking: list[Entry]

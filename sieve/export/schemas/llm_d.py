"""Values of the llm-d modelservice chart: the fields used."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from sieve.export.schemas.pods import ContainerPort, Count, Env, Label, Port, Resources
from sieve.export.yaml_text import Fields

VERSION: Final = "llm-d modelservice chart, values as documented in November 2026"


class Artifacts(Fields):
    """The model's files."""

    name: Annotated[str, Field(min_length=1)]
    uri: Annotated[str, Field(min_length=1)]
    size: str
    secret: str = Field(alias="authSecretName")


class Accelerator(Fields):
    """Kind of accelerator."""

    type: Literal["nvidia"]


class Routing(Fields):
    """Where requests come in."""

    port: Port = Field(alias="servicePort")


class Parallelism(Fields):
    """How an engine is split; `workers` are nodes."""

    tensor: Count
    data: Count
    local: Count = Field(alias="dataLocal")
    workers: Count


class EngineContainer(Fields):
    """The engine's container."""

    name: Label
    image: str
    how: Literal["custom"] = Field(alias="modelCommand")
    command: list[str]
    args: list[str]
    env: list[Env]
    ports: list[ContainerPort]
    resources: Resources
    mounts_model: bool = Field(alias="mountModelVolume")


class Decode(Fields):
    """Engines that answer."""

    create: Literal[True]
    replicas: Count
    parallelism: Parallelism
    containers: Annotated[list[EngineContainer], Field(min_length=1, max_length=1)]


class Prefill(Fields):
    """Engines that only read prompts: none here."""

    create: Literal[False]


class Values(Fields):
    """Values of the chart."""

    name: Label = Field(alias="fullnameOverride")
    artifacts: Artifacts = Field(alias="modelArtifacts")
    accelerator: Accelerator
    routing: Routing
    multinode: bool
    decode: Decode
    prefill: Prefill

"""Pods of Kubernetes 1.34 (`core/v1`): the fields used."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from sieve.export.yaml_text import Fields

VERSION: Final = "Kubernetes 1.34, core/v1"

Label = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")]
"""A DNS-1123 label that begins with a letter, as services need it."""
Count = Annotated[int, Field(ge=1)]
GpuCount = Annotated[str, Field(pattern=r"^[1-9][0-9]*$")]
Port = Annotated[int, Field(ge=1, le=65535)]


class Metadata(Fields):
    """Name, labels and annotations."""

    name: Label
    labels: dict[str, Label] | None = None
    annotations: dict[str, str] | None = None


class SecretKey(Fields):
    """A key of a secret."""

    name: str
    key: str
    optional: bool = False


class EnvSource(Fields):
    """Where a variable comes from."""

    secret_key: SecretKey = Field(alias="secretKeyRef")


class Env(Fields):
    """A variable."""

    name: str
    value: str | None = None
    source: EnvSource | None = Field(default=None, alias="valueFrom")


class ContainerPort(Fields):
    """A port of a container."""

    name: Label | None = None
    port: Port = Field(alias="containerPort")


class HttpGet(Fields):
    """A request that must succeed."""

    path: str
    port: Port
    scheme: Literal["HTTP", "HTTPS"] = "HTTP"


class Probe(Fields):
    """A probe."""

    http: HttpGet = Field(alias="httpGet")
    period_s: Count = Field(alias="periodSeconds")
    failures: Count = Field(alias="failureThreshold")


class Resources(Fields):
    """What a container may use."""

    limits: dict[Literal["nvidia.com/gpu"], GpuCount]


class Mount(Fields):
    """A mounted volume."""

    name: Label
    path: str = Field(alias="mountPath")


class Container(Fields):
    """A container."""

    name: Label
    image: Annotated[str, Field(min_length=1)]
    command: list[str]
    args: list[str]
    env: list[Env]
    ports: list[ContainerPort] | None = None
    resources: Resources
    startup: Probe | None = Field(default=None, alias="startupProbe")
    readiness: Probe | None = Field(default=None, alias="readinessProbe")
    liveness: Probe | None = Field(default=None, alias="livenessProbe")
    mounts: list[Mount] = Field(alias="volumeMounts")


class Memory(Fields):
    """A volume in memory."""

    medium: Literal["Memory"]


class Volume(Fields):
    """A volume."""

    name: Label
    memory: Memory = Field(alias="emptyDir")


class PodSpec(Fields):
    """A pod."""

    containers: Annotated[list[Container], Field(min_length=1)]
    volumes: list[Volume]
    node_selector: dict[str, str] | None = Field(default=None, alias="nodeSelector")


class PodTemplate(Fields):
    """A pod with its labels."""

    metadata: dict[Literal["labels", "annotations"], dict[str, Any]]
    spec: PodSpec


class Selector(Fields):
    """Labels to match."""

    labels: dict[str, Label] = Field(alias="matchLabels")

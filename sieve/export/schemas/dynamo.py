"""Dynamo `nvidia.com/v1alpha1` DynamoGraphDeployment: the fields used."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from sieve.export.schemas.pods import Count, GpuCount, Metadata
from sieve.export.yaml_text import Fields

VERSION: Final = "nvidia.com/v1alpha1"


class MainContainer(Fields):
    """The container of a component."""

    image: str
    command: list[str] | None = None
    args: list[str] | None = None


class PodExtras(Fields):
    """Changes to a component's pod."""

    container: MainContainer = Field(alias="mainContainer")


class Limits(Fields):
    """GPUs of one node."""

    gpu: GpuCount


class Resources(Fields):
    """What a component is given."""

    limits: Limits


class Multinode(Fields):
    """Nodes of one worker."""

    nodes: Annotated[int, Field(ge=2)] = Field(alias="nodeCount")


class Component(Fields):
    """A frontend or the workers."""

    kind: Literal["frontend", "worker"] = Field(alias="componentType")
    replicas: Count
    secret: str | None = Field(default=None, alias="envFromSecret")
    resources: Resources | None = None
    multinode: Multinode | None = None
    pod: PodExtras = Field(alias="extraPodSpec")


class GraphSpec(Fields):
    """Components by name."""

    services: dict[Literal["Frontend", "VllmWorker"], Component]


class GraphDeployment(Fields):
    """A graph of components."""

    api: Literal["nvidia.com/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["DynamoGraphDeployment"]
    metadata: Metadata
    spec: GraphSpec

"""Deployment and Service of Kubernetes 1.34: the fields used."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from sieve.export.schemas.pods import Count, Label, Metadata, PodTemplate, Port, Selector
from sieve.export.yaml_text import Fields

VERSION: Final = "Kubernetes 1.34, apps/v1 and v1"


class DeploymentSpec(Fields):
    """Pods that are kept alive."""

    replicas: Count
    selector: Selector
    template: PodTemplate


class KubernetesDeployment(Fields):
    """`apps/v1` Deployment."""

    api: Literal["apps/v1"] = Field(alias="apiVersion")
    kind: Literal["Deployment"]
    metadata: Metadata
    spec: DeploymentSpec


class ServicePort(Fields):
    """A port of a service."""

    name: Label
    port: Port
    target: Port = Field(alias="targetPort")


class ServiceSpec(Fields):
    """Which pods a service leads to."""

    selector: dict[str, Label]
    ports: list[ServicePort]


class Service(Fields):
    """`v1` Service."""

    api: Literal["v1"] = Field(alias="apiVersion")
    kind: Literal["Service"]
    metadata: Metadata
    spec: ServiceSpec

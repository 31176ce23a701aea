"""Compose Specification (documentation): the fields used."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from sieve.export.schemas.pods import Label
from sieve.export.yaml_text import Fields

VERSION: Final = "Compose Specification"


class Device(Fields):
    """GPUs of a service, by number on the host."""

    driver: Literal["nvidia"]
    ids: Annotated[list[str], Field(min_length=1)] = Field(alias="device_ids")
    capabilities: list[Literal["gpu"]]


class Reservations(Fields):
    """What is set aside."""

    devices: list[Device]


class Resources(Fields):
    """What a service is given."""

    reservations: Reservations


class Deploy(Fields):
    """How a service runs."""

    resources: Resources


class Service(Fields):
    """One engine, or one node of it."""

    image: str
    entrypoint: list[str]
    command: list[str]
    environment: dict[str, str]
    ipc: Literal["host"]
    ports: list[str] | None = None
    network: Literal["host"] | None = Field(default=None, alias="network_mode")
    profiles: list[Label] | None = None
    deploy: Deploy


class ComposeFile(Fields):
    """A compose file."""

    name: Label
    services: Annotated[dict[Label, Service], Field(min_length=1)]

"""Configuration of Ray Serve LLM, Ray 2.60 (documentation): the fields used."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from sieve.export.schemas.pods import Count, Label
from sieve.export.yaml_text import Fields

VERSION: Final = "Ray 2.60.0, ray.serve.llm"


class Loading(Fields):
    """Name in the API, and what is loaded."""

    id: Annotated[str, Field(min_length=1)] = Field(alias="model_id")
    source: Annotated[str, Field(min_length=1)] = Field(alias="model_source")


class Autoscaling(Fields):
    """Number of engines: fixed here, as it was evaluated."""

    least: Count = Field(alias="min_replicas")
    most: Count = Field(alias="max_replicas")


class ReplicaConfig(Fields):
    """Engines of one model."""

    autoscaling: Autoscaling = Field(alias="autoscaling_config")


class Bundle(Fields):
    """What one worker is given."""

    cpus: Count = Field(alias="CPU")
    gpus: Count = Field(alias="GPU")


class Placement(Fields):
    """Where the workers of an engine stand."""

    bundles: list[Bundle]
    strategy: Literal["PACK", "STRICT_PACK", "SPREAD"]


class LlmConfig(Fields):
    """One model."""

    loading: Loading = Field(alias="model_loading_config")
    accelerator: str | None = Field(default=None, alias="accelerator_type")
    keywords: dict[str, Any] = Field(alias="engine_kwargs")
    deployment: ReplicaConfig = Field(alias="deployment_config")
    placement: Placement | None = Field(default=None, alias="placement_group_config")


class AppArgs(Fields):
    """Arguments of the application's builder."""

    configs: Annotated[list[LlmConfig], Field(min_length=1)] = Field(alias="llm_configs")


class Application(Fields):
    """An application with an OpenAI-compatible API."""

    name: Label
    route: str = Field(alias="route_prefix")
    builder: Literal["ray.serve.llm:build_openai_app"] = Field(alias="import_path")
    args: AppArgs


class ServeConfig(Fields):
    """A Serve config file."""

    applications: list[Application]

"""KServe `serving.kserve.io` v1alpha1 and v1beta1 (documentation): the fields used."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from sieve.export.schemas.pods import Container, Count, Metadata, PodSpec, Resources, Volume
from sieve.export.yaml_text import Fields

VERSION: Final = "serving.kserve.io/v1alpha1 and v1beta1"


class Model(Fields):
    """What is served."""

    uri: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]


class Parallelism(Fields):
    """How an engine is split."""

    tensor: Count
    pipeline: Count
    expert: bool = False
    data: Count | None = None
    local: Count | None = Field(default=None, alias="dataLocal")


class Router(Fields):
    """Managed route and gateway, as the cluster sets them up."""

    route: dict[str, Any]
    gateway: dict[str, Any]


class LlmServiceSpec(Fields):
    """Engines and their router."""

    model: Model
    replicas: Count
    parallelism: Parallelism
    router: Router
    template: PodSpec
    worker: PodSpec | None = None


class LlmInferenceService(Fields):
    """`v1alpha1` LLMInferenceService."""

    api: Literal["serving.kserve.io/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["LLMInferenceService"]
    metadata: Metadata
    spec: LlmServiceSpec


class ModelFormat(Fields):
    """Format of the model's files."""

    name: Literal["huggingface"]


class RuntimeModel(Fields):
    """A model run by a runtime of the cluster."""

    format: ModelFormat = Field(alias="modelFormat")
    runtime: str
    uri: str = Field(alias="storageUri")
    args: list[str]
    resources: Resources


class WorkerSpec(Fields):
    """How an engine is split over nodes."""

    tensor: Count = Field(alias="tensorParallelSize")
    pipeline: Count = Field(alias="pipelineParallelSize")
    containers: list[dict[str, Any]]


class Predictor(Fields):
    """What answers: own containers on one node, or a runtime with workers."""

    least: Count = Field(alias="minReplicas")
    most: Count | None = Field(default=None, alias="maxReplicas")
    containers: list[Container] | None = None
    volumes: list[Volume] | None = None
    node_selector: dict[str, str] | None = Field(default=None, alias="nodeSelector")
    model: RuntimeModel | None = None
    worker: WorkerSpec | None = Field(default=None, alias="workerSpec")


class InferenceServiceSpec(Fields):
    """The predictor."""

    predictor: Predictor


class InferenceService(Fields):
    """`v1beta1` InferenceService."""

    api: Literal["serving.kserve.io/v1beta1"] = Field(alias="apiVersion")
    kind: Literal["InferenceService"]
    metadata: Metadata
    spec: InferenceServiceSpec

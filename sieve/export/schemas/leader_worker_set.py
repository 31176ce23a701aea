"""LeaderWorkerSet `leaderworkerset.x-k8s.io/v1` (documentation): the fields used."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from sieve.export.schemas.pods import Count, Metadata, PodTemplate
from sieve.export.yaml_text import Fields

VERSION: Final = "leaderworkerset.x-k8s.io/v1"


class GroupTemplate(Fields):
    """A leader and its workers."""

    size: Annotated[int, Field(ge=2)]
    restart: Literal["RecreateGroupOnPodRestart", "None"] = Field(alias="restartPolicy")
    leader: PodTemplate = Field(alias="leaderTemplate")
    worker: PodTemplate = Field(alias="workerTemplate")


class GroupsSpec(Fields):
    """Groups of pods."""

    replicas: Count
    template: GroupTemplate = Field(alias="leaderWorkerTemplate")


class LeaderWorkerSet(Fields):
    """Groups of pods that live and die together."""

    api: Literal["leaderworkerset.x-k8s.io/v1"] = Field(alias="apiVersion")
    kind: Literal["LeaderWorkerSet"]
    metadata: Metadata
    spec: GroupsSpec

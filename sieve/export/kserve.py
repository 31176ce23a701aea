"""KServe LLMInferenceService, on one node or several."""

from __future__ import annotations

import re
from typing import Any

from sieve.export import placeholders
from sieve.export.deployment import Deployment, Started
from sieve.export.pods import command_of, fills_no_template, gpus_of, head, metadata, pod_spec
from sieve.export.schemas.kserve import VERSION, LlmInferenceService
from sieve.export.yaml_text import read_yaml, write_yaml

FILE = "kserve-llm.yaml"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
"""A name that a `hf://` address can hold."""


def fits(deployment: Deployment) -> bool:
    """Tell whether this target can express the candidate: it fills templates in its fields."""
    return fills_no_template(deployment)


def model_uri(deployment: Deployment) -> str:
    """Return where the model's files are, a placeholder unless it is a name on the hub."""
    name = deployment.model_or("")
    return f"hf://{name}" if HUB_NAME.fullmatch(name) else placeholders.MODEL_URI


def write(deployment: Deployment) -> str:
    """Return the manifest."""
    ranks = deployment.data_parallel
    spec: dict[str, Any] = {
        "model": {
            "uri": model_uri(deployment),
            "name": deployment.model_or(placeholders.CHECKPOINT),
        },
        "replicas": deployment.replicas,
        "parallelism": {
            "tensor": deployment.row["tp"],
            "pipeline": deployment.row["pp"],
            "expert": deployment.row["ep"] > 1,
            **({"data": ranks, "dataLocal": ranks} if ranks > 1 else {}),
        },
        "router": {"route": {}, "gateway": {}},
        "template": pod_spec(deployment, "main"),
    }
    if deployment.nodes > 1:
        spec["worker"] = pod_spec(deployment, "main", worker=True)
    manifest = {
        "apiVersion": "serving.kserve.io/v1alpha1",
        "kind": "LLMInferenceService",
        "metadata": metadata(deployment),
        "spec": spec,
    }
    return write_yaml([manifest], [LlmInferenceService], head(deployment, VERSION))


def read(text: str) -> Started:
    """Return what the manifest starts; its parallelism must be that of its arguments."""
    spec = read_yaml(text)[0]["spec"]
    (found,) = spec["template"]["containers"]
    args = command_of(found)
    nodes = 1
    if "worker" in spec:
        nodes = int(args[args.index("--nnodes") + 1])
    split = spec["parallelism"]
    if "data" in split:
        args[args.index("--data-parallel-size") + 1] = str(split["data"])
    for flag, key in (
        ("--tensor-parallel-size", "tensor"),
        ("--pipeline-parallel-size", "pipeline"),
    ):
        args[args.index(flag) + 1] = str(split[key])
    return Started(args, spec["replicas"], nodes, gpus_of(found))

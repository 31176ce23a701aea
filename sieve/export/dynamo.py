"""Dynamo: a graph of one frontend and the engines as workers."""

from __future__ import annotations

from typing import Any

from sieve.errors import ExportError
from sieve.export import placeholders
from sieve.export.deployment import Deployment, Started
from sieve.export.pods import escaped, head, metadata, unescaped
from sieve.export.schemas.dynamo import VERSION, GraphDeployment
from sieve.export.yaml_text import read_yaml, write_yaml

FILE = "dynamo.yaml"
_ENGINE = ["python3", "-m", "dynamo.vllm"]


def fits(deployment: Deployment) -> bool:  # noqa: ARG001 - one signature for all targets
    """Tell whether this target can express the candidate."""
    return True


def write(deployment: Deployment) -> str:
    """Return the manifest; the operator adds what tells the nodes of a worker apart."""
    model = deployment.model_or(placeholders.CHECKPOINT)
    worker: dict[str, Any] = {
        "componentType": "worker",
        "replicas": deployment.replicas,
        "envFromSecret": placeholders.HF_TOKEN_SECRET,
        "resources": {"limits": {"gpu": str(deployment.gpus_per_node)}},
    }
    if deployment.nodes > 1:
        worker["multinode"] = {"nodeCount": deployment.nodes}
    worker["extraPodSpec"] = {
        "mainContainer": {
            "image": placeholders.DYNAMO_IMAGE,
            "command": list(_ENGINE),
            "args": escaped(["--model", model, *deployment.flags]),
        }
    }
    front = {
        "componentType": "frontend",
        "replicas": 1,
        "extraPodSpec": {"mainContainer": {"image": placeholders.DYNAMO_IMAGE}},
    }
    manifest = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": metadata(deployment),
        "spec": {"services": {"Frontend": front, "VllmWorker": worker}},
    }
    return write_yaml([manifest], [GraphDeployment], head(deployment, VERSION))


def read(text: str) -> Started:
    """Return what the manifest starts.

    Raises:
        ExportError: the worker does not run Dynamo's engine.
    """
    worker = read_yaml(text)[0]["spec"]["services"]["VllmWorker"]
    found = worker["extraPodSpec"]["mainContainer"]
    args = unescaped(found["args"])
    if found["command"] != _ENGINE or args[:1] != ["--model"]:
        raise ExportError(f"a worker runs {found['command']!r} {args[:1]!r}")
    nodes = worker.get("multinode", {"nodeCount": 1})["nodeCount"]
    gpus = int(worker["resources"]["limits"]["gpu"])
    return Started(["vllm", "serve", *args[1:]], worker["replicas"], nodes, gpus)

"""Kubernetes Deployment and Service: replicas that stand in one node each."""

from __future__ import annotations

from typing import Any

from sieve.export.deployment import PORT, Deployment, Started
from sieve.export.pods import command_of, gpus_of, head, labels, metadata, pod_spec
from sieve.export.schemas.kubernetes import VERSION, KubernetesDeployment, Service
from sieve.export.yaml_text import read_yaml, write_yaml

FILE = "kubernetes.yaml"


def fits(deployment: Deployment) -> bool:
    """Tell whether this target can express the candidate."""
    return deployment.nodes == 1


def write(deployment: Deployment) -> str:
    """Return the manifests; the Service is the load balancer of the replicas."""
    pods = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(deployment),
        "spec": {
            "replicas": deployment.replicas,
            "selector": {"matchLabels": labels(deployment)},
            "template": {
                "metadata": {"labels": labels(deployment)},
                "spec": pod_spec(deployment),
            },
        },
    }
    lines = head(deployment, VERSION)
    if deployment.replicas > 1:
        lines.append(
            "A Service picks a replica for each connection at random, not in turn as evaluated: "
            "put a router before the pods for the evaluated routing."
        )
    documents = [pods, service(deployment, labels(deployment))]
    return write_yaml(documents, [KubernetesDeployment, Service], lines)


def service(deployment: Deployment, selector: dict[str, str]) -> dict[str, Any]:
    """Return the service that leads to the pods of a selector."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(deployment),
        "spec": {
            "selector": selector,
            "ports": [{"name": "http", "port": PORT, "targetPort": PORT}],
        },
    }


def read(text: str) -> Started:
    """Return what the manifests start."""
    spec = read_yaml(text)[0]["spec"]
    (found,) = spec["template"]["spec"]["containers"]
    return Started(command_of(found), spec["replicas"], 1, gpus_of(found))

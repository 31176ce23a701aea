"""The pod of an engine, as several Kubernetes targets need it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sieve.errors import ExportError
from sieve.export import placeholders
from sieve.export.deployment import PORT, Deployment

SHM: Final = "shm"
_LEADER: Final = "$(LWS_LEADER_ADDRESS)"
_RANK: Final = "$(LWS_WORKER_INDEX)"
START_UP_MINUTES: Final = 60
"""A pod is given this long to load its weights."""


def escaped(words: Sequence[str]) -> list[str]:
    """Return arguments in which Kubernetes finds no variable to expand."""
    return [word.replace("$", "$$") for word in words]


def unescaped(words: Sequence[str]) -> list[str]:
    """Return the arguments that a container gets; its own variables stay as they are."""
    return [re.sub(r"\$\$", "$", word) for word in words]


def serve_args(deployment: Deployment, *, worker: bool = False) -> list[str]:
    """Return arguments of `vllm serve` in a pod: the model, the options, and its node."""
    args = [deployment.model_or(placeholders.CHECKPOINT), *deployment.flags]
    args = escaped([*args, "--port", str(PORT)])
    if deployment.nodes > 1:
        args += ["--nnodes", str(deployment.nodes), "--node-rank", _RANK]
        args += ["--master-addr", _LEADER, *(["--headless"] if worker else [])]
    return args


def gpu_limits(deployment: Deployment) -> dict[str, Any]:
    """Return the resources of an engine on one node."""
    return {"limits": {"nvidia.com/gpu": str(deployment.gpus_per_node)}}


def token_env() -> list[dict[str, Any]]:
    """Return the variable with the hub's token, from a secret that the user names."""
    key = {"name": placeholders.HF_TOKEN_SECRET, "key": "HF_TOKEN", "optional": True}
    return [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": key}}]


def labels(deployment: Deployment) -> dict[str, str]:
    """Return the labels by which a candidate's pods are found."""
    return {"app.kubernetes.io/name": deployment.name}


def metadata(deployment: Deployment) -> dict[str, Any]:
    """Return name, labels, and the full candidate id and run as annotations."""
    notes = {"sieve/candidate-id": deployment.candidate_id, "sieve/run": deployment.run}
    return {"name": deployment.name, "labels": labels(deployment), "annotations": notes}


def _probe(period_s: int, failures: int) -> dict[str, Any]:
    get = {"path": "/health", "port": PORT}
    return {"httpGet": get, "periodSeconds": period_s, "failureThreshold": failures}


def container(deployment: Deployment, name: str, *, worker: bool = False) -> dict[str, Any]:
    """Return the container of an engine; a worker node answers no requests."""
    out: dict[str, Any] = {
        "name": name,
        "image": deployment.image,
        "command": ["vllm", "serve"],
        "args": serve_args(deployment, worker=worker),
        "env": token_env(),
        "resources": gpu_limits(deployment),
        "volumeMounts": [{"name": SHM, "mountPath": "/dev/shm"}],
    }
    if not worker:
        out["ports"] = [{"name": "http", "containerPort": PORT}]
        out["startupProbe"] = _probe(10, START_UP_MINUTES * 6)
        out["readinessProbe"] = _probe(5, 3)
        out["livenessProbe"] = _probe(10, 6)
    return out


def pod_spec(deployment: Deployment, name: str = "vllm", *, worker: bool = False) -> dict[str, Any]:
    """Return the pod of an engine, or of one of its nodes."""
    return {
        "containers": [container(deployment, name, worker=worker)],
        "volumes": [{"name": SHM, "emptyDir": {"medium": "Memory"}}],
        "nodeSelector": {"nvidia.com/gpu.product": placeholders.GPU_PRODUCT},
    }


def command_of(found: Mapping[str, Any]) -> list[str]:
    """Return the command line of a container.

    Raises:
        ExportError: it does not run `vllm serve`.
    """
    if found["command"] != ["vllm", "serve"]:
        raise ExportError(f"a container runs {found['command']!r}, expected vllm serve")
    return [*found["command"], *unescaped(found["args"])]


def gpus_of(found: Mapping[str, Any]) -> int:
    """Return the GPUs of a container."""
    return int(found["resources"]["limits"]["nvidia.com/gpu"])


def fills_no_template(deployment: Deployment) -> bool:
    """Tell whether no word of a candidate is a template to a system that fills templates."""
    words = [deployment.model_or(""), deployment.run, deployment.candidate_id, *deployment.flags]
    return not any("{{" in word for word in words)


def head(deployment: Deployment, version: str) -> list[str]:
    """Return the comment lines of a manifest."""
    return [
        f"{deployment.candidate_id} of run {deployment.run}",
        f"Written for {version}; engine options of vLLM 0.33.0.",
    ]

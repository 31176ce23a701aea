"""Docker Compose: the engines of one host, or the nodes of one engine."""

from __future__ import annotations

from typing import Any, Final

from sieve.export.deployment import PORT, Deployment, Started
from sieve.export.pods import head
from sieve.export.schemas.compose import VERSION, ComposeFile
from sieve.export.vllm_serve import CHECKPOINT
from sieve.export.yaml_text import read_yaml, write_yaml

FILE = "compose.yaml"
_NODE: Final = {"leader": "0", "worker": "${NODE_RANK:?}"}


def fits(deployment: Deployment) -> bool:  # noqa: ARG001 - one signature for all targets
    """Tell whether this target can express the candidate."""
    return True


def write(deployment: Deployment, gpus_per_host: int = 8) -> str:
    """Return the compose file.

    Args:
        deployment: the candidate.
        gpus_per_host: GPUs of one host; as many engines as fit share it, each with its own port.
    """
    lines = head(deployment, VERSION)
    if deployment.nodes > 1:
        services = {role: _service(deployment, 0, role) for role in _NODE}
        lines.append(
            f"One replica spans {deployment.nodes} hosts: on the first `docker compose --profile "
            "leader up`, on the others `--profile worker up` with NODE_RANK from 1 up; "
            "MASTER_ADDR is the address of the first."
        )
    else:
        here = max(1, min(deployment.replicas, gpus_per_host // deployment.gpus_per_replica))
        services = {f"replica-{i}": _service(deployment, i) for i in range(here)}
        if here < deployment.replicas:
            lines.append(
                f"{here} of {deployment.replicas} replicas on one host of {gpus_per_host} GPUs: "
                "start it on as many hosts as that needs."
            )
        if deployment.replicas > 1:
            lines.append(f"Put a round-robin router before the ports from {PORT} up.")
    return write_yaml([{"name": deployment.name, "services": services}], [ComposeFile], lines)


def _service(deployment: Deployment, number: int, role: str | None = None) -> dict[str, Any]:
    model = deployment.model_or("")
    command = [_escape(model) if model else CHECKPOINT, *map(_escape, deployment.flags)]
    command += ["--port", str(PORT)]
    first = number * deployment.gpus_per_node
    out: dict[str, Any] = {
        "image": deployment.image,
        "entrypoint": ["vllm", "serve"],
        "environment": {"HF_TOKEN": "${HF_TOKEN:-}"},
        "ipc": "host",
    }
    if role is None:
        out["ports"] = [f"{PORT + number}:{PORT}"]
    else:
        command += ["--nnodes", str(deployment.nodes), "--node-rank", _NODE[role]]
        command += ["--master-addr", "${MASTER_ADDR:?}"]
        command += ["--headless"] if role == "worker" else []
        out["network_mode"] = "host"
        out["profiles"] = [role]
    device = {
        "driver": "nvidia",
        "device_ids": [str(i) for i in range(first, first + deployment.gpus_per_node)],
        "capabilities": ["gpu"],
    }
    out["command"] = command
    out["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return out


def _escape(word: str) -> str:
    return word.replace("$", "$$")


def read(text: str) -> Started:
    """Return what the first service starts; each other engine has GPUs of its own."""
    services = read_yaml(text)[0]["services"]
    first = next(iter(services.values()))
    (device,) = first["deploy"]["resources"]["reservations"]["devices"]
    words = [word.replace("$$", "$") for word in first["command"]]
    nodes = int(words[words.index("--nnodes") + 1]) if "--nnodes" in words else 1
    args = [*first["entrypoint"], *words]
    return Started(args, None, nodes, len(device["device_ids"]))

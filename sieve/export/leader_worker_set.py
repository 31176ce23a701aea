"""LeaderWorkerSet and Service: replicas that span nodes, one pod a node."""

from __future__ import annotations

from typing import Any

from sieve.export.deployment import Deployment, Started
from sieve.export.kubernetes import service
from sieve.export.pods import command_of, gpus_of, head, labels, metadata, pod_spec
from sieve.export.schemas.kubernetes import Service
from sieve.export.schemas.leader_worker_set import VERSION, LeaderWorkerSet
from sieve.export.yaml_text import read_yaml, write_yaml

FILE = "leader-worker-set.yaml"
_ROLE = "sieve-role"


def fits(deployment: Deployment) -> bool:
    """Tell whether this target can express the candidate."""
    return deployment.nodes > 1


def write(deployment: Deployment) -> str:
    """Return the manifests; the leader of a group answers requests, its workers compute."""

    def pod(*, worker: bool) -> dict[str, Any]:
        role = {_ROLE: "worker" if worker else "leader"}
        return {
            "metadata": {"labels": labels(deployment) | role},
            "spec": pod_spec(deployment, worker=worker),
        }

    groups = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": metadata(deployment),
        "spec": {
            "replicas": deployment.replicas,
            "leaderWorkerTemplate": {
                "size": deployment.nodes,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": pod(worker=False),
                "workerTemplate": pod(worker=True),
            },
        },
    }
    leaders = service(deployment, labels(deployment) | {_ROLE: "leader"})
    # The set makes a headless service of its own name.
    leaders["metadata"] = {**leaders["metadata"], "name": f"{deployment.name}-http"}
    lines = head(deployment, VERSION)
    return write_yaml([groups, leaders], [LeaderWorkerSet, Service], lines)


def read(text: str) -> Started:
    """Return what the manifests start; leader and workers must agree."""
    spec = read_yaml(text)[0]["spec"]
    template = spec["leaderWorkerTemplate"]
    (leader,) = template["leaderTemplate"]["spec"]["containers"]
    (worker,) = template["workerTemplate"]["spec"]["containers"]
    same = command_of(worker) == [*command_of(leader), "--headless"]
    gpus = gpus_of(leader) if same and gpus_of(leader) == gpus_of(worker) else 0
    return Started(command_of(leader), spec["replicas"], template["size"], gpus)

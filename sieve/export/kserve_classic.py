"""KServe InferenceService: own container on one node, a runtime of the cluster on several."""

from __future__ import annotations

from typing import Any

from sieve.export import placeholders
from sieve.export.deployment import Deployment, Started
from sieve.export.pods import (
    command_of,
    escaped,
    gpu_limits,
    gpus_of,
    head,
    metadata,
    pod_spec,
    unescaped,
)
from sieve.export.schemas.kserve import VERSION, InferenceService
from sieve.export.yaml_text import read_yaml, write_yaml

FILE = "kserve-classic.yaml"
_SPLIT = ("--tensor-parallel-size", "--pipeline-parallel-size")


def fits(deployment: Deployment) -> bool:
    """Tell whether this target can express the candidate: over nodes, whole stages on each."""
    return deployment.nodes == 1 or deployment.row["pp"] == deployment.nodes


def write(deployment: Deployment) -> str:
    """Return the manifest; the number of replicas is fixed as evaluated."""
    lines = head(deployment, VERSION)
    predictor: dict[str, Any] = {"minReplicas": deployment.replicas}
    if deployment.nodes == 1:
        predictor["maxReplicas"] = deployment.replicas
        predictor |= pod_spec(deployment, "kserve-container")
    else:
        lines.append("Over nodes there is no autoscaling, and the volume must be RWX.")
        predictor["model"] = {
            "modelFormat": {"name": "huggingface"},
            "runtime": placeholders.MULTINODE_RUNTIME,
            "storageUri": f"pvc://{placeholders.MODEL_CLAIM}",
            "args": escaped(_without_split(deployment.flags)),
            "resources": gpu_limits(deployment),
        }
        predictor["workerSpec"] = {
            "tensorParallelSize": deployment.row["tp"],
            "pipelineParallelSize": deployment.row["pp"],
            "containers": [{"name": "worker-container", "resources": gpu_limits(deployment)}],
        }
    manifest = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": metadata(deployment),
        "spec": {"predictor": predictor},
    }
    return write_yaml([manifest], [InferenceService], lines)


def _without_split(flags: list[str]) -> list[str]:
    """Return the options but those that `workerSpec` sets."""
    out = list(flags)
    for flag in _SPLIT:
        at = out.index(flag)
        del out[at : at + 2]
    return out


def read(text: str) -> Started:
    """Return what the manifest starts; over nodes the model is the volume's."""
    manifest = read_yaml(text)[0]
    predictor = manifest["spec"]["predictor"]
    if "workerSpec" not in predictor:
        (found,) = predictor["containers"]
        return Started(command_of(found), predictor["minReplicas"], 1, gpus_of(found))
    model, worker = predictor["model"], predictor["workerSpec"]
    split = [str(worker["tensorParallelSize"]), str(worker["pipelineParallelSize"])]
    args = ["vllm", "serve", model["storageUri"], _SPLIT[0], split[0], _SPLIT[1], split[1]]
    args += unescaped(model["args"])
    nodes = int(split[1])
    return Started(args, predictor["minReplicas"], nodes, gpus_of(model), names_model=False)

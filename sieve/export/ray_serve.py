"""Ray Serve LLM: a Serve config file with one model."""

from __future__ import annotations

import re
from typing import Any, Final

from sieve.export import placeholders
from sieve.export.deployment import Deployment, Started
from sieve.export.options import flags_of, keywords_of
from sieve.export.pods import head
from sieve.export.schemas.ray_serve import VERSION, ServeConfig
from sieve.export.yaml_text import read_yaml, write_yaml

FILE = "ray-serve.yaml"
_TYPES: Final = {
    "A100": "A100", "H100": "H100", "H200": "H200", "L4": "L4", "L40S": "L40S", "A10G": "A10G",
    "B200": "B200", "GH200": "GH200", "T4": "T4", "V100": "V100",
}  # fmt: skip
"""First part of a GPU's name -> Ray's accelerator type."""


def fits(deployment: Deployment) -> bool:
    """Tell whether this target can express the candidate: not data-parallel ranks, here."""
    return deployment.data_parallel == 1


def write(deployment: Deployment) -> str:
    """Return the config; Ray places the workers, so the options name no nodes."""
    model = deployment.model_or(placeholders.CHECKPOINT)
    kind = _TYPES.get(re.split(r"[-_ ]", str(deployment.row["gpu"]).upper())[0])
    one: dict[str, Any] = {"model_loading_config": {"model_id": model, "model_source": model}}
    lines = head(deployment, VERSION)
    if kind is None:
        lines.append("Ray's name of this GPU is not known here: add accelerator_type yourself.")
    else:
        one["accelerator_type"] = kind
    one["engine_kwargs"] = keywords_of(deployment.flags)
    count = deployment.replicas
    one["deployment_config"] = {
        "autoscaling_config": {"min_replicas": count, "max_replicas": count}
    }
    whole = "PACK" if deployment.nodes > 1 else "STRICT_PACK"
    bundles = [{"CPU": 1, "GPU": 1}] * deployment.gpus_per_replica
    one["placement_group_config"] = {
        "bundles": [dict(bundle) for bundle in bundles],
        "strategy": whole,
    }
    app = {
        "name": deployment.name,
        "route_prefix": "/",
        "import_path": "ray.serve.llm:build_openai_app",
        "args": {"llm_configs": [one]},
    }
    if count > 1:
        lines.append("Ray routes by its own policy, not in turn as evaluated.")
    return write_yaml([{"applications": [app]}], [ServeConfig], lines)


def read(text: str) -> Started:
    """Return what the config starts; Ray chooses the nodes."""
    (app,) = read_yaml(text)[0]["applications"]
    (one,) = app["args"]["llm_configs"]
    args = ["vllm", "serve", one["model_loading_config"]["model_source"]]
    args += flags_of(one["engine_kwargs"])
    count = one["deployment_config"]["autoscaling_config"]["min_replicas"]
    return Started(args, count, None, len(one["placement_group_config"]["bundles"]))

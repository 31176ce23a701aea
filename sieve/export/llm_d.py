"""Values of the llm-d modelservice chart: engines that read prompts and answer."""

from __future__ import annotations

from sieve.export import placeholders
from sieve.export.deployment import PORT, Deployment, Started
from sieve.export.kserve import model_uri
from sieve.export.pods import (
    command_of,
    fills_no_template,
    gpu_limits,
    gpus_of,
    head,
    serve_args,
    token_env,
)
from sieve.export.schemas.llm_d import VERSION, Values
from sieve.export.yaml_text import read_yaml, write_yaml

FILE = "llm-d-values.yaml"


def fits(deployment: Deployment) -> bool:
    """Tell whether this target can express the candidate: it fills templates in its fields."""
    return fills_no_template(deployment)


def write(deployment: Deployment) -> str:
    """Return the values; the command is spelled out, so that the chart adds no option."""
    values = {
        "fullnameOverride": deployment.name,
        "modelArtifacts": {
            "name": deployment.model_or(placeholders.CHECKPOINT),
            "uri": model_uri(deployment),
            "size": placeholders.MODEL_SIZE,
            "authSecretName": placeholders.HF_TOKEN_SECRET,
        },
        "accelerator": {"type": "nvidia"},
        "routing": {"servicePort": PORT},
        "multinode": deployment.nodes > 1,
        "decode": {
            "create": True,
            "replicas": deployment.replicas,
            "parallelism": {
                "tensor": deployment.row["tp"],
                "data": deployment.data_parallel,
                "dataLocal": deployment.data_parallel,
                "workers": deployment.nodes,
            },
            "containers": [
                {
                    "name": "vllm",
                    "image": deployment.image,
                    "modelCommand": "custom",
                    "command": ["vllm", "serve"],
                    "args": serve_args(deployment),
                    "env": token_env(),
                    "ports": [{"containerPort": PORT}],
                    "resources": gpu_limits(deployment),
                    "mountModelVolume": True,
                }
            ],
        },
        "prefill": {"create": False},
    }
    lines = head(deployment, VERSION)
    if deployment.nodes > 1:
        lines.append("Workers of a group (rank above 0) also need the option --headless.")
    return write_yaml([values], [Values], lines)


def read(text: str) -> Started:
    """Return what the values start."""
    decode = read_yaml(text)[0]["decode"]
    (found,) = decode["containers"]
    args = command_of(found)
    split = decode["parallelism"]
    args[args.index("--tensor-parallel-size") + 1] = str(split["tensor"])
    if split["data"] > 1:
        args[args.index("--data-parallel-size") + 1] = str(split["data"])
    return Started(args, decode["replicas"], decode["parallelism"]["workers"], gpus_of(found))

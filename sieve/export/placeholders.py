"""What a user must fill in before a manifest can start: named, never invented.

The words are in capitals, so that a cluster refuses them where a name belongs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

CHECKPOINT: Final = "REPLACE_ME_CHECKPOINT"
HF_TOKEN_SECRET: Final = "REPLACE_ME_HF_TOKEN_SECRET"
GPU_PRODUCT: Final = "REPLACE_ME_GPU_PRODUCT"
MODEL_CLAIM: Final = "REPLACE_ME_MODEL_CLAIM"
MODEL_SIZE: Final = "REPLACE_ME_MODEL_SIZE"
MODEL_URI: Final = "REPLACE_ME_MODEL_URI"
DYNAMO_IMAGE: Final = "REPLACE_ME_DYNAMO_IMAGE"
MULTINODE_RUNTIME: Final = "REPLACE_ME_MULTINODE_RUNTIME"

MEANINGS: Final = {
    CHECKPOINT: "hub name or path of a checkpoint with the evaluated weight precision",
    HF_TOKEN_SECRET: "Kubernetes secret whose key HF_TOKEN may download the model",
    GPU_PRODUCT: "value of your nodes' label nvidia.com/gpu.product for this GPU",
    MODEL_CLAIM: "volume claim with the model's files, readable from every node",
    MODEL_SIZE: "size of the volume for the model's files, such as 100Gi",
    MODEL_URI: "where the model's files are, such as hf://ORG/NAME or pvc://CLAIM/PATH",
    DYNAMO_IMAGE: "Dynamo's vLLM runtime image whose engine has the run's version",
    MULTINODE_RUNTIME: "your cluster's KServe serving runtime for vLLM on several nodes",
    "CHECKPOINT": "shell variable: hub name or path of a checkpoint with the evaluated precision",
    "NODE_RANK": "shell variable: 0 on a replica's first node, one more on each further one",
    "MASTER_ADDR": "shell variable: address of the replica's node with rank 0",
}
_VARIABLE: Final = re.compile(r"\$\{([A-Z_]+):\?\}")
_WORD: Final = re.compile(r"REPLACE_ME_[A-Z_]+[A-Z]|\$\{(CHECKPOINT|NODE_RANK|MASTER_ADDR):\?\}")


def found_in(texts: Iterable[str]) -> dict[str, str]:
    """Return the placeholders that occur in the texts, with what belongs there."""
    words = {match[1] or match[0] for text in texts for match in _WORD.finditer(text)}
    return {word: MEANINGS[word] for word in MEANINGS if word in words}


def variables_in(script: str) -> list[str]:
    """Return the shell variables without which a script stops, in order of appearance."""
    return list(dict.fromkeys(_VARIABLE.findall(script)))

"""A chosen candidate as every target needs it: arguments, sizes, names."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sieve.errors import ExportError
from sieve.export.vllm_serve import CHECKPOINT, needs_checkpoint, parse_command, serve_command
from sieve.frames import AXES, OPTIONS, gpus_per_replica

PORT: Final = 8000
"""Port of `vllm serve` and of every service here."""

_NAME_LENGTH: Final = 50
"""Leaves room in a label of 63 characters for what controllers append to a pod's name."""

_COMPARED: Final = tuple(
    name for name in (*AXES, *OPTIONS) if name not in {"gpu", "replicas", "weight_dtype"}
)


@dataclass(frozen=True)
class Deployment:
    """One candidate, ready to be written down.

    Attributes:
        row: its row of the candidate table.
        model: hub name or path that the engines load; None: the user must name a checkpoint.
        checkpoint_dtype: precision of the published weights.
        engine: engine of the run.
        engine_version: its version, "" without one.
        nodes: that one replica spans.
        run: name of the run.
    """

    row: Mapping[str, Any]
    model: str | None
    checkpoint_dtype: str
    engine: str
    engine_version: str
    nodes: int
    run: str

    @property
    def candidate_id(self) -> str:
        """Key of the candidate."""
        return str(self.row["candidate_id"])

    @property
    def name(self) -> str:
        """Name for Kubernetes: a DNS-1123 label, unlike that of any other candidate."""
        return dns_name(self.candidate_id)

    @property
    def replicas(self) -> int:
        """Independent engines."""
        return int(self.row["replicas"])

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one replica, of all its data-parallel ranks."""
        return gpus_per_replica(self.row)

    @property
    def data_parallel(self) -> int:
        """Engines of one replica that share its experts."""
        return int(self.row.get("data_parallel_size", 1))

    @property
    def gpus_per_node(self) -> int:
        """GPUs that one engine takes on each of its nodes."""
        return self.gpus_per_replica // self.nodes

    @property
    def is_named(self) -> bool:
        """Whether the engine can load the model under its name as it was evaluated."""
        weights = str(self.row["weight_dtype"])
        return self.model is not None and not needs_checkpoint(weights, self.checkpoint_dtype)

    def model_or(self, placeholder: str) -> str:
        """Return the model, or a placeholder where the user must name a checkpoint."""
        return str(self.model) if self.is_named else placeholder

    @property
    def flags(self) -> list[str]:
        """Every evaluated option of one engine, without the model and without its nodes."""
        return serve_command(self.row, self.model or CHECKPOINT, self.checkpoint_dtype)[3:]

    @property
    def image(self) -> str:
        """Public image of the engine's version; patch level 0 where the run names none."""
        return f"vllm/vllm-openai:v{self.image_version}"

    @property
    def image_version(self) -> str:
        """Version of the image, three numbers."""
        version = self.engine_version or "0.33"
        return version if version.count(".") >= 2 else f"{version}.0"


@dataclass(frozen=True)
class Started:
    """What a written target would start, read back from its text.

    Attributes:
        args: `vllm serve MODEL` with its options.
        replicas: engines; None where the target starts a stated share of them.
        nodes: of one engine; None where the target chooses them.
        gpus: of one engine on each node, or in all where the target chooses the nodes.
        names_model: whether the target names the model, and not a volume that holds it.
    """

    args: list[str]
    replicas: int | None
    nodes: int | None
    gpus: int
    names_model: bool = True


def dns_name(text: str) -> str:
    """Return a DNS-1123 label for any text: lower case, with a hash that keeps names apart."""
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    tail = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"sieve-{slug[: _NAME_LENGTH - 15].strip('-') or 'x'}-{tail}"


def check(deployment: Deployment, target: str, text: str, read: Callable[[str], Started]) -> None:
    """Hold what a target would start to the candidate that was evaluated.

    Raises:
        ExportError: an option, a size or the model differs.
    """
    started = read(text)
    back = parse_command(started.args)
    row = deployment.row
    wanted: dict[str, Any] = {name: row[name] for name in _COMPARED if row.get(name) is not None}
    wanted["weight_dtype"] = row["weight_dtype"]
    back.setdefault("weight_dtype", row["weight_dtype"])  # the checkpoint's own
    sizes = {"gpus": deployment.gpus_per_replica}
    found: dict[str, Any] = {"gpus": started.gpus * (started.nodes or 1)}
    if started.nodes is not None:
        sizes["nodes"], found["nodes"] = deployment.nodes, started.nodes
    if started.replicas is not None:
        sizes["replicas"], found["replicas"] = deployment.replicas, started.replicas
    differs = [
        f"{name} {value!r} became {(back | found).get(name)!r}"
        for name, value in (wanted | sizes).items()
        if (back | found).get(name) != value
    ]
    if deployment.is_named and started.names_model and back["model"] != deployment.model:
        differs.append(f"model {deployment.model!r} became {back['model']!r}")
    if differs:
        raise ExportError(
            f"{target} of {deployment.candidate_id} would not start what was evaluated: "
            + "; ".join(differs)
        )


def read_script(script: str) -> Started:
    """Return what `serve.sh` starts on one node of one replica."""
    start = script.rindex("\nexec ") + 1
    words = shlex.split(script[start:].replace(" \\\n", " "))[1:]
    back = parse_command(words)
    nodes = back.get("nodes", 1)
    return Started(words, None, nodes, gpus_per_replica(back) // nodes)

"""What all benchmark scripts share: levels, scopes, shell words."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sieve.export.deployment import Deployment
from sieve.export.traffic import TrafficFile
from sieve.export.vllm_serve import CHECKPOINT
from sieve.spec import LatencyLimits


@dataclass(frozen=True)
class Bench:
    """A benchmark of one candidate.

    Attributes:
        deployment: the candidate.
        traffic: of the whole fleet.
        share: of one replica alone, None where it cannot be split.
        levels: load levels by their text.
        limits: per-request limits that count for goodput.
        percentiles: to report.
        in_ms: name of the traffic in milliseconds, where the traffic itself is in seconds.
    """

    deployment: Deployment
    traffic: TrafficFile
    share: TrafficFile | None
    levels: Mapping[str, float]
    limits: LatencyLimits
    percentiles: Sequence[str] = field(default=("50", "90", "95", "99"))
    in_ms: str | None = None


def level_text(level: float) -> str:
    """Return a load level as scripts and results name it: 1.0, 0.75."""
    return repr(float(level))


def users_at(users: int, level: float) -> int:
    """Return the users of a closed loop at a load level, as a replay rounds them."""
    return max(1, int(users * level + 0.5))


def preamble(bench: Bench, tool: str, scales: Mapping[str, str]) -> list[str]:
    """Return the lines before the command: usage, and the variables of the command.

    Args:
        bench: the benchmark.
        tool: what the script runs, with its version.
        scales: what each level sets the variable `scale` to.
    """
    deployment, traffic = bench.deployment, bench.traffic
    known = " ".join(scales)
    lines = [
        "#!/usr/bin/env bash",
        f"# {_comment(deployment.candidate_id)} of run {_comment(deployment.run)}: {tool}",
        "# BASE_URL=http://HOST:8000 bash SCRIPT [LEVEL], LEVEL one of " + known,
        *_scope_words(bench),
        "# Results go to RESULT_DIR, default ./results.",
        "set -euo pipefail",
        'plan="$(cd -- "$(dirname -- "$0")/.." && pwd)"',
        'level="${1:-1.0}"',
        'case "$level" in',
        *(f"  {_pattern(text)}) scale={value} ;;" for text, value in scales.items()),
        f'  *) echo "level $level: expected one of {known}" >&2; exit 2 ;;',
        "esac",
        'scope="${SCOPE:-fleet}"',
        'case "$scope" in',
        f"  fleet) traffic={traffic.name}; count={traffic.num_requests}; key=candidate_id ;;",
    ]
    if bench.share is not None:
        share = bench.share
        lines.append(
            f"  replica) traffic={share.name}; count={share.num_requests}; key=replica_of ;;"
        )
    lines += [
        '  *) echo "SCOPE $scope: not one of this candidate" >&2; exit 2 ;;',
        "esac",
        'results="${RESULT_DIR:-results}"',
        'mkdir -p -- "$results"',
        f'name="{deployment.name}-level-$level-$scope-$(date -u +%Y%m%dT%H%M%SZ)"',
    ]
    return lines


def _pattern(text: str) -> str:
    """Return how a level may be given: 1.0 or 1."""
    return f"{text}|{text[:-2]}" if text.endswith(".0") else text


def _scope_words(bench: Bench) -> list[str]:
    replicas = bench.deployment.replicas
    if replicas == 1:
        return ["# One replica: BASE_URL is its address."]
    words = [
        f"# BASE_URL is the router before all {replicas} replicas, the whole traffic goes to it."
    ]
    if bench.share is not None:
        words.append(
            f"# SCOPE=replica sends one replica its share, every request in {replicas}: "
            "rates are then one replica's."
        )
    return words


def script(lines: Sequence[str], words: Sequence[str]) -> str:
    """Return a script that ends with a command, one flag with its values a line."""
    pieces: list[str] = []
    for word in words:
        if word.startswith("--") or not pieces:
            pieces.append(word)
        else:
            pieces[-1] += f" {word}"
    return "\n".join([*lines, "exec " + " \\\n  ".join(pieces), ""])


def quoted(text: str) -> str:
    """Return text as one word of the shell."""
    return shlex.quote(text)


def model_word(deployment: Deployment) -> str:
    """Return the model as a word of the shell, or the variable that names the checkpoint."""
    return quoted(str(deployment.model)) if deployment.is_named else f'"{CHECKPOINT}"'


def _comment(text: str) -> str:
    return " ".join(str(text).split())

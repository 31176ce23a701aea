"""Engine options as an argument list, and as the keyword arguments that some targets take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sieve.errors import ExportError

_WHOLE: Final = frozenset(
    {
        "tensor_parallel_size", "pipeline_parallel_size", "max_num_seqs", "max_num_batched_tokens",
        "max_model_len", "block_size", "decode_context_parallel_size", "data_parallel_size",
        "long_prefill_token_threshold",
    }
)  # fmt: skip


def keywords_of(flags: Sequence[str]) -> dict[str, Any]:
    """Return flags as keyword arguments: `--no-x` is `x: False`, `--x 4` is `x: 4`."""
    out: dict[str, Any] = {}
    rest = list(flags)
    while rest:
        name = rest.pop(0).removeprefix("--").replace("-", "_")
        if rest and not rest[0].startswith("--"):
            text = rest.pop(0)
            out[name] = int(text) if name in _WHOLE else _number(name, text)
        elif name.startswith("no_"):
            out[name.removeprefix("no_")] = False
        else:
            out[name] = True
    return out


def _number(name: str, text: str) -> str | float:
    return float(text) if name == "gpu_memory_utilization" else text


def flags_of(keywords: Mapping[str, Any]) -> list[str]:
    """Return keyword arguments as the engine's own command line writes them.

    Raises:
        ExportError: a value that is no text, number or switch.
    """
    out: list[str] = []
    for name, value in keywords.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            out.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, int | float | str):
            out += [f"--{flag}", repr(value) if isinstance(value, float) else str(value)]
        else:
            raise ExportError(f"{name}: found {value!r}, expected text, a number or a switch")
    return out

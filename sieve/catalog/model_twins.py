"""Models that another entry of the catalogue describes: same layers and widths, other training.

A name that is neither in the catalogue nor a spelling of an entry is looked up here. Each line says
what may still differ, so that the answer can say it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_CONTEXT: Final = "same layers and widths; context limit and rotary scaling differ"
_TUNED: Final = "the entry's layers and widths, trained further"


@dataclass(frozen=True)
class Twin:
    """A catalogue entry that stands for another model of maker `org`, and why."""

    org: str
    entry: str
    reason: str


TWINS: Final[dict[tuple[str, ...], Twin]] = {
    ("llama", "3", "8b"): Twin("meta-llama", "meta-llama/Llama-3.1-8B-Instruct", _CONTEXT),
    ("llama", "3", "70b"): Twin("meta-llama", "meta-llama/Llama-3.1-70B-Instruct", _CONTEXT),
    ("llama", "7b"): Twin("huggyllama", "meta-llama/Llama-2-7b-hf", _CONTEXT),
    ("llama", "13b"): Twin("huggyllama", "meta-llama/Llama-2-13b-hf", _CONTEXT),
    ("qwen2", "7b"): Twin("qwen", "Qwen/Qwen2.5-7B-Instruct", _CONTEXT),
    ("qwen2", "72b"): Twin("qwen", "Qwen/Qwen2.5-72B-Instruct", _CONTEXT),
    ("qwq", "32b"): Twin("qwen", "Qwen/Qwen2.5-32B-Instruct", _TUNED),
    ("deepseek", "v3.1"): Twin("deepseek-ai", "deepseek-ai/DeepSeek-V3", _TUNED),
    ("deepseek", "r1", "distill", "llama", "8b"): Twin(
        "deepseek-ai", "meta-llama/Llama-3.1-8B-Instruct", _TUNED
    ),
    ("deepseek", "r1", "distill", "llama", "70b"): Twin(
        "deepseek-ai", "meta-llama/Llama-3.3-70B-Instruct", _TUNED
    ),
    ("deepseek", "r1", "distill", "qwen", "14b"): Twin(
        "deepseek-ai", "Qwen/Qwen2.5-14B-Instruct", _TUNED
    ),
    ("deepseek", "r1", "distill", "qwen", "32b"): Twin(
        "deepseek-ai", "Qwen/Qwen2.5-32B-Instruct", _TUNED
    ),
    ("minimax", "m2"): Twin("minimaxai", "MiniMaxAI/MiniMax-M2.5", _TUNED),
    ("minimax", "m2.1"): Twin("minimaxai", "MiniMaxAI/MiniMax-M2.5", _TUNED),
}
"""Parts of a name that fix the architecture -> entry; sources: the models' own config.json."""

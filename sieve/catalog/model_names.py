"""Model names taken apart, so that checkpoints of one architecture find its catalogue entry."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_TUNING_PARTS: Final = frozenset({"instruct", "it", "hf", "chat", "base", "thinking", "dynamic"})
CONTEXT_NOTE: Final = "the context limit is that of the catalogue's entry"
_RETRAINED_PARTS: Final = _TUNING_PARTS - {"hf", "dynamic"}
_DATE: Final = re.compile(r"2[0-9](0[1-9]|1[0-2])|(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])")
_QUANTISED_PARTS: Final[dict[str, str]] = {
    "fp8": "fp8",
    "w8a8": "int8",
    "quantized.w8a8": "int8",
    "int8": "int8",
    "awq": "int4",
    "gptq": "int4",
    "int4": "int4",
    "w4a16": "int4",
    "quantized.w4a16": "int4",
    "4bit": "int4",
    "nvfp4": "nvfp4",
    "fp4": "nvfp4",
    "mxfp4": "mxfp4",
    "bf16": "bf16",
    "fp16": "fp16",
}
# Organisations that publish requantised copies, or the former name of another organisation.
_REPUBLISHERS: Final = frozenset(
    {"redhatai", "neuralmagic", "nm-testing", "nvidia", "amd", "unsloth", "hugging-quants",
     "casperhansen", "zhipuai"}
)  # fmt: skip


@dataclass(frozen=True)
class ModelName:
    """A model name taken apart: what fixes the architecture, and what only tells checkpoints."""

    org: str
    key: tuple[str, ...]
    dropped: tuple[str, ...]

    @property
    def dtype(self) -> str:
        """Precision that the dropped parts name, "" if none does."""
        found = [_QUANTISED_PARTS[part] for part in self.dropped if part in _QUANTISED_PARTS]
        # `GPTQ-Int8`: the width says more than the method.
        sure = [dtype for dtype, part in zip(found, self._parts(), strict=True) if part != "gptq"]
        return (sure or found or [""])[0]

    def _parts(self) -> list[str]:
        return [part for part in self.dropped if part in _QUANTISED_PARTS]


def taken_apart(name: str) -> ModelName:
    """Return a name split into the parts that fix the architecture and the rest."""
    plain = name.strip().lower().split("@", 1)[0].rstrip("/")
    org, _, short = plain.rpartition("/")
    parts = [part for part in re.split(r"[-_\s]+", short) if part]
    if parts[:2] == ["meta", "llama"]:
        parts = parts[1:]
    key: list[str] = []
    dropped: list[str] = []
    for place, part in enumerate(parts):
        spare = part in _TUNING_PARTS or part in _QUANTISED_PARTS or _DATE.fullmatch(part)
        (dropped if spare and place > 0 else key).append(part)
    return ModelName(org=org, key=tuple(key), dropped=tuple(dropped))


def same_maker(wanted: str, known: str) -> bool:
    """Return whether a checkpoint of organisation `wanted` may stand for one of `known`."""
    return wanted in {"", known} or wanted in _REPUBLISHERS


def distance(wanted: ModelName, entry: str, known: ModelName) -> tuple[bool, bool, bool, int, str]:
    """Return the sort key of a candidate: same maker, same precision, unquantised, fewest parts."""
    differing = set(wanted.dropped) ^ set(known.dropped)
    return (
        wanted.org != known.org if wanted.org else False,
        wanted.dtype != known.dtype,
        known.dtype not in {"", "bf16", "fp16"},
        len(differing),
        entry,
    )


def alias_note(name: str, entry: str, wanted: ModelName, known: ModelName) -> str:
    """Return why an alias stands for a catalogue entry; "" if only letter case or org differ."""
    original, target = name.strip(), entry.rsplit("/", 1)[-1]
    reasons = []
    dropped = [part for part in wanted.dropped if part not in known.dropped]
    added = [part for part in known.dropped if part not in wanted.dropped]
    if dropped:
        reasons.append(f"{_suffixes(dropped, original)} dropped")
    if added:
        reasons.append(f"{_suffixes(added, target)} added")
    if "@" in original:
        reasons.append(f"revision '@{original.split('@', 1)[1]}' not looked at")
    if wanted.org and wanted.org != known.org:
        reasons.append(f"organisation '{original.rsplit('/', 1)[0]}' read as a republisher")
    if not reasons:
        return ""
    note = f"{original!r} is read as the catalogue's {entry!r}: same architecture, "
    note += ", ".join(reasons)
    if any(_DATE.fullmatch(part) or part in _RETRAINED_PARTS for part in dropped + added):
        note += f"; {CONTEXT_NOTE}"
    return note


def _suffixes(parts: list[str], spelled: str) -> str:
    """Return `suffix '-2507'` or several, spelled as in the text they come from."""
    shown = []
    for part in parts:
        at = spelled.lower().rfind(part)
        shown.append(f"'-{spelled[at : at + len(part)]}'")
    return f"suffix{'es' if len(shown) > 1 else ''} {', '.join(shown)}"

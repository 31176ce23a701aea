"""Look up an accelerator by any of its usual names, or read inline facts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import yaml

from sieve.catalog.architecture import Gpu
from sieve.catalog.names import listed, nearest_names
from sieve.errors import CatalogError
from sieve.resources import package_data
from sieve.units import GB, GIB, MIB, TERA

_YAML_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_KERNEL_SYSTEMS: Final = {
    "H100-SXM-80GB": "h100_sxm",
    "H200-SXM-141GB": "h200_sxm",
    "A100-SXM-80GB": "a100_sxm",
    "L40S-48GB": "l40s",
    "B200-SXM-180GB": "b200_sxm",
}
_RATES: Final = {
    "bf16": "bf16_dense_tflops",
    "fp8": "fp8_dense_tflops",
    "fp4": "fp4_dense_tflops",
    "int8": "int8_dense_tops",
}
# Fields of the data file that end up in a `Gpu`.
_USED_FIELDS: Final = frozenset(
    {"nvidia_smi_total_mib", "cuda_visible_total_gib", "mem_bw_gbs", "scale_up_gbs_unidirectional",
     "pcie", *_RATES.values()}
)  # fmt: skip
# The part that a name means when it fits several; the others need their form or size.
_PREFERRED: Final = ("H100-SXM-80GB", "A100-SXM-80GB", "H200-SXM-141GB", "GH200-96GB")
# Custom parts, found only when the name says their size.
_ONLY_BY_SIZE: Final = {"H100-SXM-64GB": "64"}
# Names as drivers and other tools print them, where the words alone do not lead to the part.
_EXACT: Final = {
    "nvidia h200": "H200-SXM-141GB",
    "nvidia gh200 480gb": "GH200-96GB",
    "nvidia gh200 144g hbm3e": "GH200-144GB",
    "rtx pro 6000 server": "RTXPRO6000-BW-96GB",
    "nvidia rtx pro 6000 blackwell server edition": "RTXPRO6000-BW-96GB",
    "nvidia rtx pro 6000 blackwell workstation edition": "RTXPRO6000-BW-96GB",
    "nvidia b300 sxm6 ac": "B300-SXM-288GB",
}
_NOISE: Final = frozenset(
    {"nvidia", "amd", "instinct", "intel", "google", "tesla", "geforce", "gpu"}
)
_FORM_WORDS: Final = frozenset({"sxm", "pcie", "nvl", "nvl72", "bw", "tpu", "dgx", "apple", "max"})
_INLINE_KEYS: Final = (
    "name", "like", "memory_gb", "mem_bw_gbs", "bf16_dense_tflops", "fp8_dense_tflops",
    "int8_dense_tops", "scale_up_gbs_unidirectional", "usd_per_gpu_hour",
)  # fmt: skip
_INLINE_NEEDED: Final = ("memory_gb", "mem_bw_gbs", "bf16_dense_tflops")


@dataclass(frozen=True)
class _Match:
    """A catalogue name and why it was chosen, "" when nothing was left open."""

    name: str
    note: str = ""


def load_gpu(name: str) -> Gpu:
    """Return the accelerator of this name; case, `-`, `_`, spaces and word order do not matter.

    Raises:
        CatalogError: no such accelerator, with the nearest names.
    """
    match = _resolve(name)
    gpu = _catalogue()[match.name]
    return replace(gpu, assumed=(match.note, *gpu.assumed)) if match.note else gpu


def list_gpus() -> list[Gpu]:
    """Return every accelerator of the catalogue in its own order."""
    return list(_catalogue().values())


def gpu_slug(name: str) -> str:
    """Return a name fit for ids and file names: lower case, `[a-z0-9.-]` only."""
    return re.sub(r"[^a-z0-9.-]", "-", name.lower())


def inline_gpu(facts: Mapping[str, Any]) -> Gpu:
    """Return the accelerator that inline facts describe.

    `like` names the catalogue accelerator that supplies what is not given; each such field is named
    in `assumed`. `memory_gb` is decimal and taken as what the engine sees.

    Raises:
        CatalogError: unknown or missing keys, or a value that is not a positive number.
    """
    unknown = [str(key) for key in facts if key not in _INLINE_KEYS]
    name = facts.get("name")
    shown = name if isinstance(name, str) and name.strip() else "inline accelerator"
    if unknown:
        raise CatalogError(
            f"gpu {shown}: unknown {listed('key', unknown)}; allowed: {', '.join(_INLINE_KEYS)}"
        )
    if not isinstance(name, str) or not name.strip():
        raise CatalogError(f"gpu: name is {name!r}; inline facts need a name in text")
    like = facts.get("like")
    if like is not None and not isinstance(like, str):
        raise CatalogError(f"gpu {name}: like is {like!r}; expected the name of a catalogue GPU")
    given = {
        key: _positive(name, key, facts[key])
        for key in _INLINE_KEYS[2:]
        if facts.get(key) is not None
    }
    if like is None:
        return _standalone(name, given)
    return _derived(name, given, load_gpu(like))


def _standalone(name: str, given: Mapping[str, float]) -> Gpu:
    """Return inline facts that lean on no catalogue entry."""
    missing = [key for key in _INLINE_NEEDED if key not in given]
    if missing:
        raise CatalogError(
            f"gpu {name}: missing {listed('key', missing)}; give them, or "
            "`like: <catalogue GPU>` to take the rest from there"
        )
    assumed = [] if "usd_per_gpu_hour" in given else ["no price is known"]
    link = given.get("scale_up_gbs_unidirectional")
    if link is None:
        assumed.append("no fast link between GPUs is known; the link rate is 0")
    assumed.append("the PCIe rate is not known; it is 0")
    if link is not None:
        assumed.append("fast domain of 8 GPUs")
    return Gpu(
        name=name,
        memory_bytes=given["memory_gb"] * GB,
        mem_bw_bytes_per_s=given["mem_bw_gbs"] * GB,
        flops_per_s={mode: given[key] * TERA for mode, key in _RATES.items() if key in given},
        link_bytes_per_s=(link or 0.0) * GB,
        pcie_bytes_per_s=0.0,
        scale_up_gpus=8 if link else 1,
        compute_capability=None,
        usd_per_gpu_hour=given.get("usd_per_gpu_hour"),
        vendor="",
        assumed=tuple(assumed),
    )


def _derived(name: str, given: Mapping[str, float], base: Gpu) -> Gpu:
    """Return inline facts with the rest taken from the catalogue's `base`."""
    taken: list[str] = []

    def pick(key: str, factor: float, value: float) -> float:
        if key in given:
            return given[key] * factor
        taken.append(key)
        return value

    memory = pick("memory_gb", GB, base.memory_bytes)
    bandwidth = pick("mem_bw_gbs", GB, base.mem_bw_bytes_per_s)
    rates = {}
    for mode, key in _RATES.items():
        if mode in base.flops_per_s or key in given:
            rates[mode] = pick(key, TERA, base.flops_per_s.get(mode, 0.0))
    link = pick("scale_up_gbs_unidirectional", GB, base.link_bytes_per_s)
    price, price_note = base.usd_per_gpu_hour, base.price_note
    if "usd_per_gpu_hour" in given:
        price, price_note = given["usd_per_gpu_hour"], ""
    elif price is not None:
        taken.append("usd_per_gpu_hour")
    timed = {"mem_bw_gbs", *_RATES.values()}
    assumed = [f"{key} from {base.name}" for key in taken]
    assumed.append(f"PCIe rate, fast domain and compute capability from {base.name}")
    assumed.extend(f"{base.name}: {note}" for note in base.assumed)
    return Gpu(
        name=name,
        memory_bytes=memory,
        mem_bw_bytes_per_s=bandwidth,
        flops_per_s=rates,
        link_bytes_per_s=link,
        pcie_bytes_per_s=base.pcie_bytes_per_s,
        scale_up_gpus=base.scale_up_gpus,
        compute_capability=base.compute_capability,
        usd_per_gpu_hour=price,
        price_note=price_note,
        vendor=base.vendor,
        kernel_system="" if timed & given.keys() else base.kernel_system,
        like=base.name,
        assumed=tuple(assumed),
    )


def _positive(name: str, key: str, value: object) -> float:
    number = math.nan
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except (ValueError, OverflowError):
            number = math.nan
    if not 0.0 < number < 1e9:  # also refuses NaN
        raise CatalogError(
            f"gpu {name}: {key} is {value!r}; allowed is a number above 0, up to 1e9"
        )
    return number


@lru_cache(maxsize=1)
def _entries() -> tuple[Mapping[str, Any], ...]:
    text = package_data("catalog", "data", "gpus.yaml").read_text(encoding="utf-8")
    return tuple(yaml.load(text, Loader=_YAML_LOADER)["gpus"])


@lru_cache(maxsize=1)
def _catalogue() -> dict[str, Gpu]:
    return {entry["name"]: _gpu(entry) for entry in _entries()}


def _gpu(entry: Mapping[str, Any]) -> Gpu:
    """Return one entry of the data file in bytes, seconds and USD."""
    assumed: list[str] = []
    memory = _memory_bytes(entry, assumed)
    pcie = entry.get("pcie_gbs_unidirectional")
    if pcie is None:
        assumed.append("the PCIe rate is not known; it is 0")
    fast = entry.get("scale_up_gbs_unidirectional")
    domain = int(entry.get("scale_up_domain_gpus", 1))
    if fast is None and domain > 1:
        assumed.append("the rate of the fast link is not known; the PCIe rate stands for it")
    if "optional" in str(entry.get("scale_up_link", "")):
        assumed.append("the optional NVLink bridge is taken to be there")
    rates = {mode: entry[key] * TERA for mode, key in _RATES.items() if key in entry}
    if "bf16" not in rates:
        assumed.append("no dense matrix rate is published")
    price, price_note = _price(entry)
    unsure = [field for field in entry["unverified_fields"] if field in _USED_FIELDS]
    if unsure:
        assumed.append(f"not verified (secondary source or derived): {', '.join(unsure)}")
    return Gpu(
        name=entry["name"],
        memory_bytes=memory,
        mem_bw_bytes_per_s=entry["mem_bw_gbs"] * GB,
        flops_per_s=rates,
        link_bytes_per_s=(fast if fast is not None else pcie or 0) * GB,
        pcie_bytes_per_s=(pcie or 0) * GB,
        scale_up_gpus=domain,
        compute_capability=entry.get("compute_capability"),
        usd_per_gpu_hour=price,
        price_note=price_note,
        vendor=entry["vendor"],
        kernel_system=_KERNEL_SYSTEMS.get(entry["name"], ""),
        assumed=tuple(assumed),
    )


def _memory_bytes(entry: Mapping[str, Any], assumed: list[str]) -> float:
    """Return what the device reports, else the board total, else the figure on the box."""
    visible = entry.get("cuda_visible_total_gib")
    if visible is not None:
        ends = [float(part) for part in str(visible).split("-")]
        return sum(ends) / len(ends) * GIB
    board = entry.get("nvidia_smi_total_mib")
    if board is not None:
        assumed.append(
            f"memory is the board total of {board} MiB; what CUDA reports is not known and is "
            "some hundred MiB less"
        )
        return float(board) * MIB
    nominal = float(entry["memory_gb_nominal"])
    assumed.append(f"memory is the nominal {nominal:g} GB; what the device reports is not known")
    return nominal * GB


def _price(entry: Mapping[str, Any]) -> tuple[float | None, str]:
    low, high = entry.get("usd_per_gpu_hour_low"), entry.get("usd_per_gpu_hour_high")
    if low is None or high is None:
        return None, ""
    spread = f"middle of {low}-{high} USD/h" if low != high else f"{low} USD/h"
    return round((low + high) / 2, 6), f"{spread}, {entry['price_sources_and_dates']}, assumed"


def _words(name: str) -> tuple[str, ...]:
    """Return the lower-case words of a name, makers' words left out and forms made alike."""
    text = re.sub(r"[-_\s/(),:]+", " ", name.lower()).strip()
    text = text.replace("rtx pro 6000", "rtxpro6000").replace("gaudi 3", "gaudi3")
    text = re.sub(r"\brtx (\d{4})\b", r"rtx\1", text)
    text = re.sub(r"\b([abhlm]{1,2}\d{2,3}[sx]?)(sxm\d?|pcie|nvl)\b", r"\1 \2", text)
    words = [word for word in text.split() if word not in _NOISE]
    return tuple(_alike(word) for word in words)


def _alike(word: str) -> str:
    if re.fullmatch(r"sxm\d?", word):
        return "sxm"
    size = re.fullmatch(r"(\d+)(gb|g|gib)?", word)
    return size[1] if size else word


def _resolve(name: str) -> _Match:
    spelled = re.sub(r"[-_\s]+", " ", name.lower()).strip()
    known = _catalogue()
    for entry in known:
        if re.sub(r"[-_\s]+", " ", entry.lower()) == spelled:
            return _Match(entry)
    if spelled in _EXACT:
        return _Match(_EXACT[spelled])
    words = frozenset(_words(name))
    found = [entry["name"] for entry in _entries() if _fits(words, entry)]
    if len(found) == 1:
        return _Match(found[0])
    preferred = [entry for entry in _PREFERRED if entry in found]
    if len(preferred) == 1:
        others = ", ".join(entry for entry in found if entry != preferred[0])
        return _Match(preferred[0], f"{name!r} is read as {preferred[0]} (also: {others})")
    if found:
        raise CatalogError(f"gpu {name!r} is ambiguous: {', '.join(found)}; give one of them")
    nearest = ", ".join(nearest_names(name, known))
    raise CatalogError(
        f"unknown gpu {name!r}; nearest: {nearest}. Give a catalogue name (`sieve gpus`) or inline "
        "facts"
    )


def _fits(words: frozenset[str], entry: Mapping[str, Any]) -> bool:
    """Return whether every word belongs to the entry and one of them names the part itself."""
    own = frozenset(_words(entry["name"]))
    memory_type = str(entry["memory_type"]).lower()
    by_size = _ONLY_BY_SIZE.get(entry["name"])
    if by_size is not None and by_size not in words:
        return False
    identity = {word for word in own if not word.isdigit()} - _FORM_WORDS
    return words <= own | {memory_type} and bool(words & identity)

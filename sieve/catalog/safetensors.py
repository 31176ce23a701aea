"""Exact sizes of a checkpoint's tensors, from the headers of its safetensors files.

Only headers are read: 8 bytes that give the header's length, then JSON with type, shape and place
of each tensor. Without the files the index alone gives the total.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sieve.errors import CatalogError

INDEX_NAME: Final = "model.safetensors.index.json"
_MOST_INDEX_BYTES: Final = 50_000_000
_MOST_HEADER_BYTES: Final = 25_000_000  # the format allows 100 MB; real headers have below 2 MB
_MOST_FILES: Final = 2000
_MOST_TENSOR_BYTES: Final = 2**50
_DTYPE_BITS: Final = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "F16": 16, "BF16": 16,
    "I16": 16, "U16": 16, "I8": 8, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8,
    "F4": 4,
}  # fmt: skip
_WIDE: Final = frozenset({"F64", "F32"})
_LAYER: Final = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,6})\.")
_OTHER_TOWER: Final = re.compile(r"visi|visual|audio|image", re.IGNORECASE)
_NOT_LOADED: Final = re.compile(r"(?:^|\.)mtp\b|rotary_emb\.inv_freq$")


@dataclass(frozen=True)
class StoredWeights:
    """What a checkpoint holds and the engine loads.

    Attributes:
        source: the files, in words.
        num_bytes: of all tensors that are loaded, in the types that the engine serves.
        by_dtype: stored bytes by type as the files name it, sorted; empty without headers.
        num_tensors: that are loaded.
        num_skipped: stored tensors that the engine leaves out: drafting layers, tied heads.
        notes: what is worth knowing.
    """

    source: str
    num_bytes: int
    by_dtype: tuple[tuple[str, int], ...]
    num_tensors: int
    num_skipped: int
    notes: tuple[str, ...] = ()


def read_stored_weights(
    folder: Path, *, num_layers: int, tied: bool, in_16_bits: bool
) -> StoredWeights | None:
    """Return what the safetensors files of a folder hold, None if there are none.

    Args:
        folder: that holds the files.
        num_layers: of the model; tensors of layers beyond are not loaded.
        tied: the head is the embedding, a stored head is not loaded.
        in_16_bits: the model is served in 16 bits, wider tensors are cut on loading.

    Raises:
        CatalogError: a file that is damaged or larger than such files are.
    """
    index = folder / INDEX_NAME
    try:
        if index.is_file():
            names, total = _index(index)
        else:
            names = sorted(path.name for path in folder.glob("*.safetensors"))
            total = None
        if not names:
            return None
        if len(names) > _MOST_FILES:
            raise CatalogError(f"{folder}: {len(names)} weight files; allowed are {_MOST_FILES}")
        missing = [name for name in names if not (folder / name).is_file()]
    except OSError as error:
        raise CatalogError(f"{folder}: cannot be read: {error.strerror}") from error

    def is_loaded(tensor: str) -> bool:
        if _NOT_LOADED.search(tensor) or (tied and tensor.endswith("lm_head.weight")):
            return False
        layer = _LAYER.search(tensor)
        beyond = layer is not None and int(layer[1]) >= num_layers
        return not (beyond and not _OTHER_TOWER.search(tensor))

    if missing:
        return _from_index(index, total, is_loaded) if index.is_file() else None
    stored: dict[str, int] = {}
    loaded = tensors = skipped = cut = 0
    for name in names:
        for tensor, dtype, size in _tensors(folder / name):
            if not is_loaded(tensor):
                skipped += 1
                continue
            tensors += 1
            stored[dtype] = stored.get(dtype, 0) + size
            if in_16_bits and dtype in _WIDE:
                cut += 1
                size = size * 16 // _DTYPE_BITS[dtype]  # noqa: PLW2901
            loaded += size
    notes = (f"{cut} tensors are stored wider than 16 bits and cut on loading",) if cut else ()
    files = f"{len(names)} file{'s' if len(names) > 1 else ''}"
    return StoredWeights(
        f"headers of {files}", loaded, tuple(sorted(stored.items())), tensors, skipped, notes
    )


def _from_index(index: Path, total: int | None, is_loaded: Any) -> StoredWeights | None:
    """Return the total of an index whose files are not there, None if it does not settle it."""
    tensors = list(_json(index, _MOST_INDEX_BYTES)["weight_map"])
    skipped = sum(1 for tensor in tensors if not is_loaded(tensor))
    if total is None or skipped:
        return None
    return StoredWeights("total of the index", total, (), len(tensors), 0)


def _index(path: Path) -> tuple[list[str], int | None]:
    document = _json(path, _MOST_INDEX_BYTES)
    places = document.get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CatalogError(f"{path}: weight_map is missing or empty; download the index again")
    names = set()
    for tensor, name in places.items():
        if not isinstance(name, str) or Path(name).name != name or name in {"", ".", ".."}:
            raise CatalogError(f"{path}: weight_map.{tensor}: {name!r} is no file beside the index")
        names.add(name)
    metadata = document.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if total is None:
        return sorted(names), None
    whole = isinstance(total, int | float) and not isinstance(total, bool) and total == int(total)
    if not whole or not 0 < total < _MOST_TENSOR_BYTES:
        raise CatalogError(f"{path}: metadata.total_size is {total!r}, expected a number of bytes")
    return sorted(names), int(total)


def _json(path: Path, most: int) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > most:
            raise CatalogError(f"{path}: {path.stat().st_size:,} bytes; allowed are {most:,}")
        document = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise CatalogError(f"{path}: not a JSON object: {error}; download it again") from error
    if not isinstance(document, dict):
        raise CatalogError(f"{path}: not a JSON object; download it again")
    return document


def _tensors(path: Path) -> Iterator[tuple[str, str, int]]:
    """Yield name, type and bytes of each tensor of one file."""
    try:
        size = path.stat().st_size
        with path.open("rb") as handle:
            length = int.from_bytes(handle.read(8), "little")
            if size < 8 or length > min(_MOST_HEADER_BYTES, size - 8):
                raise CatalogError(
                    f"{path}: a header of {length:,} bytes in a file of {size:,}; allowed are "
                    f"{_MOST_HEADER_BYTES:,}. No safetensors file, or cut off"
                )
            header = json.loads(handle.read(length), parse_constant=_no_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise CatalogError(
            f"{path}: the header is not JSON: {error}; download the file again"
        ) from error
    if not isinstance(header, dict):
        raise CatalogError(f"{path}: the header is no JSON object; download the file again")
    for name, facts in header.items():
        if name != "__metadata__":
            yield name, *_tensor(path, name, facts)


def _tensor(path: Path, name: str, facts: Any) -> tuple[str, int]:
    try:
        dtype, shape = str(facts["dtype"]), [int(side) for side in facts["shape"]]
        first, last = (int(place) for place in facts["data_offsets"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise CatalogError(
            f"{path}: tensor {name!r} has no dtype, shape and data_offsets; download the file again"
        ) from None
    size = last - first
    if first < 0 or not 0 <= size < _MOST_TENSOR_BYTES or any(side < 0 for side in shape):
        raise CatalogError(
            f"{path}: tensor {name!r} has impossible offsets or shape; download the file again"
        )
    bits = _DTYPE_BITS.get(dtype)
    if bits is not None and math.prod(shape) * bits != size * 8:
        raise CatalogError(
            f"{path}: tensor {name!r} of shape {shape} in {dtype} takes {size:,} bytes: damaged; "
            "download it again"
        )
    return dtype, size


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")

"""`sieve.fit` and `sieve.bound`: one deployment by name, as functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sieve.bounds_of import bound as ceilings_of
from sieve.catalog.accelerators import load_gpu
from sieve.catalog.models import load_model
from sieve.fit_of import configure, document
from sieve.fit_of import fit as judge
from sieve.report.notebook import facts_view


@dataclass(frozen=True, eq=False)
class FitResult:
    """Whether one deployment starts, and what its cache then holds.

    Attributes:
        data: the document of `sieve fit --json`.
        fits: one request of full length fits beside weights and reserves, and no rule is broken.
        kv_tokens: tokens of cache of one replica, as the engine's log prints them.
        margin_bytes: what is left of the fullest GPU; negative: what is missing.
    """

    data: dict[str, Any]
    fits: bool
    kv_tokens: int
    margin_bytes: float

    def __repr__(self) -> str:
        return f"FitResult({self._title()})"

    def _repr_html_(self) -> str:
        return facts_view(self._title(), self.data)

    def _title(self) -> str:
        word = "fits" if self.fits else f"does not fit ({self.data['reason']})"
        tp = self.data["configuration"]["tp"]
        return f"{self.data['model']} on {self.data['gpu']}, tp {tp}: {word}"


@dataclass(frozen=True, eq=False)
class BoundResult:
    """What the hardware cannot exceed.

    Attributes:
        data: the document of `sieve bound --json`; each figure with its kind and assumptions.
    """

    data: dict[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def __repr__(self) -> str:
        return f"BoundResult({self.data['num_gpus']} x {self.data['gpu']}, {self.data['model']})"

    def _repr_html_(self) -> str:
        return facts_view(f"Ceilings of {self.data['model']} on {self.data['gpu']}", self.data)


def fit(
    model: str | Path,
    gpu: str,
    *,
    engine: str = "vllm",
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    weight_dtype: str = "auto",
    kv_cache_dtype: str = "auto",
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    gpu_memory_utilization: float | None = None,
    isl: float | None = None,
    osl: float | None = None,
) -> FitResult:
    """Return the memory ledger of one deployment and whether it fits.

    Args:
        model: catalogue name, alias, or path of a config.json.
        gpu: name of the catalogue, aliases included.
        engine: profile, such as `vllm==0.19`.
        tp: tensor parallel size.
        pp: pipeline parallel size.
        ep: expert parallel size, 1 or `tp`.
        weight_dtype: precision of the weights; `auto` is the checkpoint's.
        kv_cache_dtype: precision of the cache, the engine's spelling.
        max_model_len: longest prompt plus answer in tokens; default the model's.
        max_num_seqs: most requests in one iteration; default the engine's.
        max_num_batched_tokens: token budget of an iteration; default the engine's.
        gpu_memory_utilization: share of the card; default the engine's.
        isl: mean prompt tokens of the traffic, for its concurrency; with `osl`.
        osl: mean answer tokens.

    Raises:
        SieveError: unknown names, or values outside their range.
    """
    found = judge(
        configure(
            str(model), gpu, engine=engine, tp=tp, pp=pp, ep=ep, weight_dtype=weight_dtype,
            kv_cache_dtype=kv_cache_dtype, max_model_len=max_model_len, max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            gpu_memory_utilization=gpu_memory_utilization,
        ),
        isl=isl, osl=osl,
    )  # fmt: skip
    return FitResult(
        dict(document(found)), found.fits, int(found.kv_tokens), float(found.margin_bytes)
    )


def bound(
    model: str | Path,
    gpu: str,
    *,
    num_gpus: int = 1,
    **options: Any,
) -> BoundResult:
    """Return the ceilings of decode and prefill, what limits them, and what they assume.

    Args:
        model: catalogue name, alias, or path of a config.json.
        gpu: name of the catalogue, aliases included.
        num_gpus: GPUs that hold the model together.
        options: further arguments of `sieve.bounds_of.bound`, such as `context_tokens=8192`.

    Raises:
        SieveError: unknown names, or values outside their range.
    """
    chosen: Mapping[str, Any] = options
    return BoundResult(
        ceilings_of(
            load_model(str(model), any_family=True), load_gpu(gpu), num_gpus=num_gpus, **chosen
        )
    )

"""A deployment with every knob set: what the user gives, and the engine's defaults for the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sieve.catalog.accelerators import load_gpu
from sieve.catalog.architecture import EngineProfile, Gpu, ModelArchitecture
from sieve.catalog.engines import default_block_size, default_for_gpu, load_engine
from sieve.catalog.models import load_model, with_stored_weights
from sieve.errors import InvalidInput
from sieve.memory.corrections import Correction, CorrectionKey, matching, release
from sieve.memory.formats import WeightFormat, kv_bytes, weight_format


@dataclass(frozen=True)
class Configuration:
    """One engine instance with every knob set.

    Attributes:
        model, gpu, engine: facts.
        tp, pp, ep: parallel sizes.
        weights: format of the weights.
        kv_cache_dtype: as the engine spells it.
        max_model_len, max_num_seqs, max_num_batched_tokens, block_size: engine options.
        gpu_memory_utilization: share of the card.
        enforce_eager: no graphs.
        chunked_prefill: prompts are cut to the token budget.
        gpus_per_node: GPUs of a node, 0: one instance may have any number.
        nodes: most nodes that one instance may span.
        tp_across_nodes: its tensor ranks may span nodes too.
        pp_layer_partition: layers of each stage, empty: as the engine divides them.
        defaulted: options that the user left to the engine.
        dcp: decode context parallel size.
        dp: data-parallel ranks that share the experts; the ledger is of one of them.
        corrections: of the ledger, from start-up logs.
    """

    model: ModelArchitecture
    gpu: Gpu
    engine: EngineProfile
    tp: int
    pp: int
    ep: int
    weights: WeightFormat
    kv_cache_dtype: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    gpu_memory_utilization: float
    enforce_eager: bool
    chunked_prefill: bool
    gpus_per_node: int
    defaulted: tuple[str, ...]
    dcp: int = 1
    dp: int = 1
    corrections: tuple[Correction, ...] = ()
    nodes: int = 1
    tp_across_nodes: bool = False
    pp_layer_partition: tuple[int, ...] = ()

    @property
    def correction_key(self) -> CorrectionKey:
        """What a correction has to be about to hold here."""
        wanted = self.engine.requested.partition("==")[2] or self.engine.version
        return CorrectionKey(
            engine=self.engine.name,
            version=release(wanted),
            gpu=self.gpu.name,
            model=self.model.name,
            tp=self.tp,
            pp=self.pp,
            ep=self.ep,
        )

    @property
    def correction(self) -> Correction | None:
        """The correction that holds here, None if there is none."""
        return matching(self.corrections, self.correction_key)


def configure(
    model: str | ModelArchitecture,
    gpu: str | Gpu,
    *,
    engine: str | EngineProfile = "vllm",
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    weight_dtype: str = "auto",
    kv_cache_dtype: str = "auto",
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    gpu_memory_utilization: float | None = None,
    block_size: int | None = None,
    enforce_eager: bool = False,
    gpus_per_node: int = 0,
    nodes: int = 1,
    tp_across_nodes: bool = False,
    pp_layer_partition: tuple[int, ...] = (),
    dcp: int = 1,
    dp: int = 1,
    corrections: tuple[Correction, ...] = (),
    base_dir: Path | None = None,
) -> Configuration:
    """Return a deployment with the engine's defaults for what is not given.

    Raises:
        CatalogError: unknown model, card or engine.
        NotYetError: layers that are not described.
        InvalidInput: a knob outside its range.
    """
    for name, size in (("tp", tp), ("pp", pp), ("ep", ep), ("dcp", dcp), ("dp", dp)):
        _whole(name, size, 1, 4096)
    _whole("gpus_per_node", gpus_per_node, 0, 4096)
    _whole("nodes", nodes, 1, 1024)
    if not gpus_per_node and (nodes > 1 or tp_across_nodes):
        raise InvalidInput("nodes and tp_across_nodes need gpus_per_node, the GPUs of a node")
    if tp_across_nodes and nodes == 1:
        raise InvalidInput("tp_across_nodes has no effect on one node; give nodes, or leave it out")
    facts = model
    if isinstance(facts, str):
        name = facts
        facts = load_model(name, base_dir=base_dir, any_family=True)
        facts = with_stored_weights(facts, name, base_dir=base_dir)
    card = load_gpu(gpu) if isinstance(gpu, str) else gpu
    profile = load_engine(engine) if isinstance(engine, str) else engine
    _check_partition(facts, profile, pp, pp_layer_partition)
    defaulted = []

    def pick(name: str, value: Any, default: Callable[[], Any]) -> Any:
        if value is not None:
            return value
        defaulted.append(name)
        return default()

    length = pick("max_model_len", max_model_len, lambda: facts.max_position_embeddings)
    if length is None:
        raise InvalidInput(f"{facts.name}: no context limit is known; give max_model_len")
    _whole("max_model_len", length, 1, 10**9)
    chunked = bool(profile.defaults.get("enable_chunked_prefill", True))
    long_context = profile.defaults.get("chunked_prefill_above")
    chunked = chunked or (long_context is not None and length > long_context)
    budget = pick(
        "max_num_batched_tokens", max_num_batched_tokens,
        lambda: _default_budget(profile, card, length, chunked=chunked),
    )  # fmt: skip
    _whole("max_num_batched_tokens", budget, 1, 10**9)
    seqs = pick(
        "max_num_seqs", max_num_seqs, lambda: default_for_gpu(profile, "max_num_seqs", card)
    )
    _whole("max_num_seqs", seqs, 1, 10**6)
    if "max_num_seqs" in defaulted:
        seqs = min(seqs, budget)
    if "max_num_batched_tokens" in defaulted:
        budget = max(min(budget, seqs * length), min(seqs, budget))
    share = pick(
        "gpu_memory_utilization", gpu_memory_utilization,
        lambda: float(profile.defaults["gpu_memory_utilization"]),
    )  # fmt: skip
    if not 0.0 < share <= 1.0:
        raise InvalidInput(f"gpu_memory_utilization is {share:g}; allowed is above 0, up to 1")
    size = pick("block_size", block_size, lambda: default_block_size(profile, facts, card))
    _whole("block_size", size, 1, 65536)
    kv_bytes(kv_cache_dtype)
    return Configuration(
        model=facts,
        gpu=card,
        engine=profile,
        tp=tp,
        pp=pp,
        ep=ep,
        weights=weight_format(facts, weight_dtype),
        kv_cache_dtype=kv_cache_dtype,
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        block_size=size,
        gpu_memory_utilization=share,
        enforce_eager=enforce_eager,
        chunked_prefill=chunked,
        gpus_per_node=gpus_per_node,
        nodes=nodes,
        tp_across_nodes=tp_across_nodes,
        pp_layer_partition=tuple(pp_layer_partition),
        defaulted=tuple(defaulted),
        dcp=dcp,
        dp=dp,
        corrections=corrections,
    )


def _check_partition(
    model: ModelArchitecture, engine: EngineProfile, pp: int, partition: tuple[int, ...]
) -> None:
    """Refuse layers by stage that are not all the model's, as the engine does."""
    if not partition:
        return
    shown = ",".join(str(part) for part in partition)
    if engine.name == "reference":
        raise InvalidInput(
            f"pp_layer_partition {shown}: the plain rules of engine reference divide layers evenly"
        )
    if len(partition) != pp:
        raise InvalidInput(
            f"pp_layer_partition {shown} has {len(partition)} parts for pp {pp}; give one number "
            "of layers for each stage"
        )
    if min(partition) < 1 or sum(partition) != model.num_hidden_layers:
        raise InvalidInput(
            f"pp_layer_partition {shown} holds {sum(partition)} layers; {model.name} has "
            f"{model.num_hidden_layers}, at least one on each stage"
        )


def _default_budget(profile: EngineProfile, gpu: Gpu, length: int, *, chunked: bool) -> int:
    """Return the default token budget; it covers the longest prompt if prompts stay whole."""
    value = int(default_for_gpu(profile, "max_num_batched_tokens", gpu))
    return value if chunked else max(value, length)


def _whole(name: str, value: object, least: int, most: int) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not least <= int(str(value)) <= most:
        raise InvalidInput(f"{name} is {value!r}; allowed is a whole number from {least} to {most}")

"""What a kernel table holds: operations, their columns, precisions and units.

A table is a Parquet file named after its operation with the key columns, then the axes of a curve
or surface, then `latency_us`, rows sorted by all of them; `docs/kernel_tables.md` is the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

_ATTENTION: Final = (
    "attn_dtype", "kv_cache_dtype", "head_dim", "window_size", "num_heads", "num_key_value_heads",
)  # fmt: skip
_MLA_MODULE: Final = ("model", "mla_dtype", "kv_cache_dtype", "gemm_type", "num_heads")
_MLA: Final = ("mla_dtype", "kv_cache_dtype", "num_heads")


@dataclass(frozen=True)
class Operation:
    """Columns of one operation.

    Attributes:
        keys: columns that name a site.
        axes: columns that vary within a site, one or two.
        about: what is timed, in words.
        precision: key columns that name an arithmetic precision which the GPU must have.
        stored: key columns that name how something is stored; any known precision is allowed.
        keep: column -> values; rows with others are left out when tables are made.
        defaults: column -> value of sources that lack the column.
        used: whether step times are composed from it in this version.
    """

    keys: tuple[str, ...]
    axes: tuple[str, ...]
    about: str
    precision: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()
    keep: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)
    defaults: Mapping[str, str | int] = field(default_factory=dict)
    used: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that identify a row: keys, then axes."""
        return (*self.keys, *self.axes)


OPERATIONS: Final[Mapping[str, Operation]] = MappingProxyType(
    {
        "gemm": Operation(
            ("gemm_dtype", "n", "k"), ("m",), "matrix product y[m, n] = x[m, k] w[n, k]",
            precision=("gemm_dtype",), used=True,
        ),
        "context_attention": Operation(
            _ATTENTION, ("batch_size", "isl"), "prefill attention of one layer",
            precision=("attn_dtype",), stored=("kv_cache_dtype",), keep={"step": (0,)},
            defaults={"window_size": 0, "step": 0}, used=True,
        ),
        "generation_attention": Operation(
            _ATTENTION, ("batch_size", "step"), "decode attention of one layer",
            precision=("attn_dtype",), stored=("kv_cache_dtype",), keep={"isl": (1,)},
            defaults={"window_size": 0, "isl": 1}, used=True,
        ),
        "custom_allreduce": Operation(
            ("allreduce_dtype", "backend", "num_gpus"), ("message_size",),
            "all-reduce of the engine's own kernel, inside a CUDA graph",
            stored=("allreduce_dtype",), keep={"backend": ("vllm_graph",)}, used=True,
        ),
        "nccl": Operation(
            ("op_name", "nccl_dtype", "num_gpus"), ("message_size",),
            "NCCL all-reduce, all-gather, reduce-scatter, all-to-all",
            stored=("nccl_dtype",), keep={"nccl_dtype": ("half",)}, used=True,
        ),
        "moe": Operation(
            (
                "moe_dtype", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size",
                "moe_ep_size", "distribution",
            ),
            ("num_tokens",), "routed experts of one layer on one GPU",
            precision=("moe_dtype",), keep={"distribution": ("balanced", "power_law_1.01")},
            used=True,
        ),
        "mla_context_module": Operation(
            _MLA_MODULE, ("batch_size", "isl"), "prefill of a latent-attention block, whole",
            precision=("mla_dtype", "gemm_type"), stored=("kv_cache_dtype",),
            keep={"step": (0,), "tp_size": (1,)}, defaults={"step": 0, "tp_size": 1},
        ),
        "mla_generation_module": Operation(
            _MLA_MODULE, ("batch_size", "step"), "decode of a latent-attention block, whole",
            precision=("mla_dtype", "gemm_type"), stored=("kv_cache_dtype",),
            keep={"isl": (1,), "tp_size": (1,)}, defaults={"isl": 1, "tp_size": 1},
        ),
        "dsa_context_module": Operation(
            ("op_name", *_MLA_MODULE), ("batch_size", "isl"),
            "prefill of a block of sparse latent attention, whole",
            precision=("mla_dtype", "gemm_type"), stored=("kv_cache_dtype",),
            keep={"step": (0,), "tp_size": (1,)}, defaults={"step": 0, "tp_size": 1}, used=True,
        ),
        "dsa_generation_module": Operation(
            ("op_name", *_MLA_MODULE), ("batch_size", "step"),
            "decode of a block of sparse latent attention, whole",
            precision=("mla_dtype", "gemm_type"), stored=("kv_cache_dtype",),
            keep={"isl": (1,), "tp_size": (1,)}, defaults={"isl": 1, "tp_size": 1}, used=True,
        ),
        "context_mla": Operation(
            _MLA, ("batch_size", "isl"), "prefill kernel of latent attention",
            precision=("mla_dtype",), stored=("kv_cache_dtype",), keep={"step": (0,)},
            defaults={"step": 0}, used=True,
        ),
        "generation_mla": Operation(
            _MLA, ("batch_size", "step"), "decode kernel of latent attention",
            precision=("mla_dtype",), stored=("kv_cache_dtype",), keep={"isl": (1,)},
            defaults={"isl": 1}, used=True,
        ),
        "mla_bmm": Operation(
            ("op_name", "bmm_dtype", "num_heads"), ("num_tokens",),
            "absorbed projections of latent attention", precision=("bmm_dtype",), used=True,
        ),
        "gdn": Operation(
            (
                "kernel_source", "phase", "d_model", "d_conv", "num_k_heads", "head_k_dim",
                "num_v_heads", "head_v_dim",
            ),
            ("batch_size", "seq_len"), "kernels of gated delta-rule (linear) attention",
            used=True,
        ),
        "kda": Operation(
            (
                "kernel_source", "phase", "d_model", "d_conv", "num_k_heads", "head_k_dim",
                "num_v_heads", "head_v_dim",
            ),
            ("batch_size", "seq_len"), "kernels of delta attention with channel-wise decay",
            used=True,
        ),
        "encoder_attention": Operation(
            ("attn_dtype", "head_dim", "num_heads"), ("batch_size", "isl"),
            "attention of a vision encoder", precision=("attn_dtype",),
        ),
        "computescale": Operation(
            ("quant_dtype", "k"), ("m",), "finding activation scales, per-token less static",
            precision=("quant_dtype",),
        ),
        "scale_matrix": Operation(
            ("quant_dtype", "k"), ("m",), "quantising activations with a known scale",
            precision=("quant_dtype",),
        ),
        "moe_a2a": Operation(
            (
                "comm_backend", "phase", "ep_size", "node_num", "hidden_size", "topk",
                "num_experts", "sms",
            ),
            ("num_tokens",), "dispatch and combine among experts' GPUs",
        ),
    }
)  # fmt: skip
"""Operations by the name of their file."""

SCHEMAS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    name: (op.keys, op.axes) for name, op in OPERATIONS.items()
}
"""Operation -> (key columns, axis columns)."""

TEXT_COLUMNS: Final = frozenset(
    {
        "gemm_dtype", "attn_dtype", "kv_cache_dtype", "allreduce_dtype", "backend", "op_name",
        "nccl_dtype", "moe_dtype", "distribution", "model", "mla_dtype", "gemm_type", "bmm_dtype",
        "kernel_source", "phase", "quant_dtype", "comm_backend",
    }
)  # fmt: skip
"""Key columns that hold text; all others hold whole numbers from 0 to 2^31 - 1."""

MODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bfloat16": "bf16", "float16": "bf16", "half": "bf16",
        # Weights of these are dequantised and multiplied in 16 bits, so every GPU can.
        "int4_wo": "bf16", "int8_wo": "bf16", "w4a16_mxfp4": "bf16",
        "fp8": "fp8", "fp8_block": "fp8", "fp8_static": "fp8", "w4afp8": "fp8",
        "w4a8_mxfp4_mxfp8": "fp8", "mxfp8": "fp8",
        "nvfp4": "fp4", "sq": "int8", "int8": "int8",
    }
)  # fmt: skip
"""Precision in a table -> arithmetic mode that the GPU must have."""

WEIGHT_BYTES: Final[Mapping[str, float]] = MappingProxyType(
    {
        "bfloat16": 2.0, "float16": 2.0, "int8_wo": 1.0, "int4_wo": 0.5, "w4a16_mxfp4": 0.5,
        "fp8": 1.0, "fp8_block": 1.0, "fp8_static": 1.0, "w4afp8": 0.5, "w4a8_mxfp4_mxfp8": 0.5,
        "mxfp8": 1.0, "nvfp4": 0.5, "sq": 1.0, "int8": 1.0,
    }
)  # fmt: skip
"""Precision in a table -> bytes of one weight at least, scales left out."""

STORED: Final = frozenset({"bfloat16", "float16", "half", "fp8", "fp8_e4m3", "fp8_e5m2", "int8"})
"""Precisions of caches and messages."""

ELEMENT_BYTES: Final[Mapping[str, float]] = MappingProxyType(
    {"bfloat16": 2, "float16": 2, "half": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1}
)
"""Bytes of one cached or sent number."""

UNITS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "latency_us": "microseconds per call on one GPU, mean of repeated runs",
        "message_size": "elements, not bytes",
        "num_heads": "query heads on one GPU",
        "num_key_value_heads": "KV heads on one GPU",
        "m": "tokens; y[m, n] = x[m, k] w[n, k]",
        "isl": "new tokens of each sequence",
        "step": "KV tokens already there; the new token comes on top",
        "window_size": "tokens, 0 for full attention",
        "num_tokens": "tokens on one GPU",
        "seq_len": "new tokens of each sequence",
        "sms": "multiprocessors given to communication, 0 for the default",
    }
)
"""Column -> unit, where the name does not tell."""

DIFFERENCES: Final = frozenset({"computescale"})
"""Operations whose latency is a difference of two timings and may be next to nothing."""
OPTIONAL: Final = ("source", "kernel_source", "condemned")
"""Columns that a table may have besides: origin of a row, kernel, and why it must not be used."""
MAX_ROWS: Final = 5_000_000
MAX_BYTES: Final = 200_000_000
MAX_FILES: Final = 2_000
MAX_INTEGER: Final = 2**31 - 1

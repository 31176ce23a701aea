"""What a step time is built for, and times that remember how well they are known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from sieve.arrays import EVIDENCE_CLASSES, FloatArray
from sieve.catalog.architecture import Gpu, ModelArchitecture
from sieve.errors import InvalidInput

MEASURED: Final = EVIDENCE_CLASSES.index("measured")
INTERPOLATED: Final = EVIDENCE_CLASSES.index("interpolated")
EXTRAPOLATED: Final = EVIDENCE_CLASSES.index("extrapolated")
ROOFLINE: Final = EVIDENCE_CLASSES.index("roofline")


@dataclass(frozen=True)
class ServingShape:
    """One replica as far as step times go.

    Attributes:
        model: architecture.
        gpu: accelerator.
        tp: tensor parallel size.
        pp: pipeline stages.
        ep: expert parallel size, 1 or a divisor of `tp`; with data-parallel ranks of `tp x dp`.
        weight_dtype: `bf16`, `fp16`, `fp8`, `int8`, `int4`, `mxfp4` or `nvfp4`.
        kv_cache_dtype: `auto`, `bfloat16`, `float16`, or a name that begins with `fp8`.
        max_num_batched_tokens: tokens of one iteration at most.
        max_num_seqs: sequences of one iteration at most.
        max_context: longest sequence in tokens.
        weight_bytes_per_param: bytes read for one weight, scales included.
        gpus_per_node: GPUs that share a host.
        nodes: hosts that the replica spans, each with equally many of its ranks.
        scale_out_bytes_per_s: rate of the network between hosts, one GPU, one direction.
        dcp: decode context parallel size, ranks that share out the tokens of a sequence.
        dp: data-parallel ranks of the replica, each with `tp x pp` GPUs, that share its experts.
    """

    model: ModelArchitecture
    gpu: Gpu
    tp: int
    pp: int
    ep: int
    weight_dtype: str
    kv_cache_dtype: str
    max_num_batched_tokens: int
    max_num_seqs: int
    max_context: int
    weight_bytes_per_param: float
    gpus_per_node: int = 8
    nodes: int = 1
    scale_out_bytes_per_s: float = 0.0
    dcp: int = 1
    dp: int = 1

    def __post_init__(self) -> None:
        """Refuse sizes below 1 and splits that leave a rest."""
        for name in ("tp", "pp", "ep", "max_num_batched_tokens", "max_num_seqs", "max_context",
                     "nodes", "dcp", "dp"):  # fmt: skip
            if getattr(self, name) < 1:
                raise InvalidInput(f"{name}: found {getattr(self, name)}, must be at least 1")
        gpus = self.tp * self.pp * self.dp
        if gpus % self.nodes:
            raise InvalidInput(f"nodes: found {self.nodes}, must divide tp x pp x dp = {gpus}")
        inside = self.gpus_on_node
        if inside % self.tp and self.tp % inside:
            raise InvalidInput(
                f"nodes: found {self.nodes}; {inside} ranks on a node are neither whole stages of "
                f"tp {self.tp} nor an even part of one"
            )
        if self.tp % self.dcp:
            raise InvalidInput(f"dcp: found {self.dcp}, must divide tp = {self.tp}")
        if self.weight_bytes_per_param <= 0:
            raise InvalidInput(
                f"weight_bytes_per_param: found {self.weight_bytes_per_param}, must be above 0"
            )

    @property
    def gpus_on_node(self) -> int:
        """Ranks of the replica on each of its hosts."""
        return self.tp * self.pp * self.dp // self.nodes

    def hosts_of(self, num_gpus: int) -> int:
        """Return how many hosts neighbouring ranks of a group of this size span."""
        return -(-num_gpus // self.gpus_on_node)

    @property
    def heads_per_gpu(self) -> int:
        """Query heads on one GPU."""
        return split(self.model.num_attention_heads, self.tp)

    @property
    def kv_heads_per_gpu(self) -> int:
        """KV heads on one GPU; replicated, not split, once `tp` exceeds their number."""
        return split(self.model.num_key_value_heads, self.tp)

    @property
    def kv_bytes_per_element(self) -> int:
        """Bytes of one cached number."""
        return 1 if self.kv_cache_dtype.startswith(("fp8", "int8")) else 2


def split(size: int, parts: int) -> int:
    """Return the largest share of `size` among `parts`, at least 1."""
    return max(1, -(-size // parts))


@dataclass(frozen=True, eq=False)
class Timing:
    """Times in seconds of n points, split by the class of evidence behind them.

    Attributes:
        by_class: (4, n) seconds, rows in the order of `EVIDENCE_CLASSES`.
    """

    by_class: FloatArray

    @classmethod
    def of(cls, time_s: npt.ArrayLike, evidence: npt.ArrayLike) -> Timing:
        """Return (n,) times whose points have the evidence classes `evidence` (broadcast)."""
        time = np.atleast_1d(np.asarray(time_s, np.float64))
        rows = np.broadcast_to(np.asarray(evidence), time.shape)
        return cls(np.where(np.arange(len(EVIDENCE_CLASSES))[:, None] == rows, time, 0.0))

    @classmethod
    def zeros(cls, n: int) -> Timing:
        """Return n points that take no time."""
        return cls(np.zeros((len(EVIDENCE_CLASSES), n)))

    @property
    def total_s(self) -> FloatArray:
        """(n,) seconds, all classes together."""
        return np.asarray(self.by_class.sum(axis=0), np.float64)

    def __add__(self, other: Timing) -> Timing:
        """Return the sum point by point."""
        return Timing(self.by_class + other.by_class)

    def scaled(self, factor: float) -> Timing:
        """Return the times multiplied by a number."""
        return Timing(self.by_class * factor)

    def at_least(self, limit_s: npt.ArrayLike) -> Timing:
        """Return the times raised to `limit_s`; what is added counts as roofline."""
        missing = np.maximum(np.asarray(limit_s, np.float64) - self.total_s, 0.0)
        return self + Timing.of(missing, ROOFLINE)

    def shares(self) -> dict[str, float]:
        """Return the share of each evidence class in the time of all points; sums to 1."""
        time = self.by_class.sum(axis=1)
        if time.sum() <= 0:
            return {"roofline": 1.0}
        share = time / time.sum()
        return {
            name: float(value)
            for name, value in zip(EVIDENCE_CLASSES, share, strict=True)
            if value > 0
        }


@dataclass(frozen=True, eq=False)
class Part:
    """Times of n points before a constant of the model is applied to them.

    Attributes:
        timing: times, or what a constant multiplies into a time.
        limit_s: (n,) or one number; seconds that the scaled times are raised to.
        constant: name of the constant in `StepConstants`, "" for none.
        count: how many of them there are: layers, calls.
    """

    timing: Timing
    limit_s: npt.ArrayLike = 0.0
    constant: str = ""
    count: float = 1.0

    def at(self, value: float) -> Timing:
        """Return the times of all `count` with the constant at `value`."""
        return self.timing.scaled(value).at_least(self.limit_s).scaled(self.count)


def total(parts: Iterable[Timing], n: int) -> Timing:
    """Return the sum of timings of n points each."""
    result = Timing.zeros(n)
    for part in parts:
        result += part
    return result

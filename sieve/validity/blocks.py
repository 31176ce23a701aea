"""Whether the shards of quantised matrices are whole quantisation blocks.

Every output of a split or merged matrix and every split input has to be a multiple of the block; of
merged outputs that are not split the last may be ragged. Group-quantised integer formats need whole
groups along split inputs. Source: vLLM `quantization/utils/fp8_utils.py`,
`validate_fp8_block_shape`, and `fp8.py` for experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

from sieve.catalog.architecture import ModelArchitecture
from sieve.catalog.matrices import PARTS, Matrix, layer_matrices, layer_plans


@dataclass(frozen=True)
class BlockFault:
    """A shard that is not a multiple of its block.

    Attributes:
        tensor: name of the matrix.
        width: without tensor parallelism.
        ranks: that share it.
        shard: elements on one rank.
        block: what the shard should be a multiple of.
    """

    tensor: str
    width: int
    ranks: int
    shard: int
    block: int


@lru_cache(maxsize=1024)
def block_faults(
    model: ModelArchitecture, *, tp: int, ep: int = 1, expert_floor: int = 0
) -> tuple[BlockFault, ...]:
    """Return the matrices that cannot be split this way, empty if all can or none has blocks.

    Args:
        model: architecture.
        tp: tensor parallel size.
        ep: expert parallel size.
        expert_floor: smallest block to which the engine refines the blocks of experts (to what
            divides block and share alike), 0 if it does not.
    """
    if not (model.quant_block or model.quant_group):
        return ()
    found: dict[str, BlockFault] = {}
    for plan in dict.fromkeys(layer_plans(model)):
        for matrix in layer_matrices(model, plan):
            if matrix.part not in PARTS or matrix.part in model.unquantised:
                continue
            for fault in _faults(model, matrix, tp, ep):
                finest = gcd(fault.block, fault.shard)
                if matrix.experts and model.quant_block and 0 < expert_floor <= finest:
                    continue
                found.setdefault(matrix.name, fault)
    return tuple(found.values())


def _faults(model: ModelArchitecture, matrix: Matrix, tp: int, ep: int) -> Iterator[BlockFault]:
    ranks = max(1, tp // ep) if matrix.experts else tp
    block = model.quant_block or model.quant_group
    if model.quant_block:
        is_split = ranks > 1 and any(side.units for side in matrix.rows)
        sides = matrix.rows if is_split else matrix.rows[:-1]
        if matrix.experts and not matrix.cols.units:
            sides = matrix.rows  # the experts' own width is always held to it
        for side in sides:
            shard = side.per_rank(ranks)
            if shard % block:
                yield BlockFault(matrix.name, side.width, ranks, shard, block)
    cols = matrix.cols
    if cols.units and ranks > 1 and cols.per_rank(ranks) % block:
        yield BlockFault(matrix.name, cols.width, ranks, cols.per_rank(ranks), block)

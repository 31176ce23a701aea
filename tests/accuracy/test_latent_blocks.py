"""Latent attention put together from single kernels, held against whole blocks of vLLM.

The tables hold both, from different engines: the kernels between the products are TensorRT-LLM's,
the blocks with their projections vLLM's (DeepSeek-V3, 16 bits). Step times use the former.
"""

import numpy as np
import pytest

from sieve.catalog.accelerators import load_gpu
from sieve.perf.constants import step_constants
from sieve.perf.gemm import BF16, gemm_timing
from sieve.perf.kernel_table import load

THRESHOLDS = {  # median error: decode, prompts
    "h100_sxm": (0.07, 0.12), "h200_sxm": (0.07, 0.12), "b200_sxm": (0.14, 0.12),
    "l40s": (0.22, 0.12),
}  # fmt: skip
HIDDEN, QUERY_RANK, LATENT = 7168, 1536, 576
BUDGET = 16384
"""Tokens of one step at most."""
SMALL_KERNELS = 3
"""Of the five of a layer: norms of the two latents, rotary embedding, cache write."""


def products_s(gpu, table, tokens, heads, *, prompts):
    """Seconds of the projections around attention, (n,)."""
    shapes = [(QUERY_RANK + LATENT, HIDDEN), (heads * 192, QUERY_RANK), (HIDDEN, heads * 128)]
    shapes += [(heads * 256, 512)] if prompts else []
    return sum(gemm_timing(gpu, table, n, k, BF16, tokens).total_s for n, k in shapes)


def block_errors(system, *, prompts):
    """Errors of all blocks whose kernels were measured at the same heads and batch."""
    gpu, gemm, bmm = load_gpu(system), load(system, "gemm"), load(system, "mla_bmm")
    name = "context" if prompts else "generation"
    blocks, kernels = load(system, f"mla_{name}_module"), load(system, f"{name}_mla")
    errors = []
    for key in blocks.sites:
        site = ("bfloat16", key[2], key[4])
        if key[1] != "bfloat16" or key[3] != "bfloat16" or site not in kernels.sites:
            continue
        batches, lengths, measured = blocks.surface(key)
        kernel_batches, grid, latency = kernels.surface(site)
        for i, batch in enumerate(batches):
            row = latency[kernel_batches == batch]
            known = np.isfinite(row[0]) if len(row) else np.zeros(len(grid), bool)
            if not known.any():
                continue
            tokens = batch * lengths if prompts else np.full(len(lengths), batch)
            use = np.isfinite(measured[i]) & (tokens <= BUDGET) & (lengths <= grid[known][-1])
            time = np.interp(lengths, grid[known], row[0][known])
            time += products_s(gpu, gemm, tokens, key[4], prompts=prompts)
            time += step_constants().layer_fixed_s / 5 * SMALL_KERNELS
            for step in () if prompts else ("mla_gen_pre", "mla_gen_post"):
                time += np.interp(batch, *bmm.curve((step, "bfloat16", key[4])))
            errors += (time[use] / measured[i][use] - 1).tolist()
    return np.asarray(errors)


@pytest.mark.parametrize("prompts", [False, True])
@pytest.mark.parametrize("system", THRESHOLDS)
def test_kernels_put_together_are_the_block(system, prompts):
    errors = block_errors(system, prompts=prompts)
    assert len(errors) > 300
    assert np.median(np.abs(errors)) < THRESHOLDS[system][prompts]
    assert abs(np.median(errors)) < 0.1

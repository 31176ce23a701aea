"""Shared builders: step times that are exact by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sieve.arrays import StepTable


class Tables:
    """Step tables whose cost is a formula that a test can write down."""

    @staticmethod
    def affine(
        *, base: float, per_token: float = 0.0, per_decode: float = 0.0, per_prompt: float = 0.0,
        per_context: float = 0.0, max_tokens: int = 4096, max_seqs: int = 256, pp: int = 1,
        transfer: float = 0.0,
    ) -> StepTable:  # fmt: skip
        """Cost of a step: base + tokens + decodes + prompt tokens + context of decodes, seconds."""
        grid = np.array([0.0, 1.0])
        batch = np.array([1.0, 2.0])
        return StepTable(
            token_s=per_token * np.arange(max_tokens + 1.0),
            decode_token_s=per_token * np.arange(max_seqs + 1.0),
            head_s=np.zeros(max_seqs + 1),
            decode_batch=batch,
            decode_context=grid,
            decode_attention_s=batch[:, None] * (per_decode + per_context * grid[None, :]),
            prefill_length=grid,
            prefill_attention_s=per_prompt * grid,
            prefill_floor_s=0.0,
            host_decode_s=base,
            host_mixed_s=base,
            pp=pp,
            pp_transfer_s=transfer,
        )


@pytest.fixture(scope="session")
def tables() -> type[Tables]:
    return Tables

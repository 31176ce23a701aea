"""One model of every layer family goes through the whole run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

import sieve
from sieve import detail

Make = Callable[..., dict[str, Any]]
GROUPS = {
    # Groups of the cache that the replay must see: by hand from the layer counts.
    "google/gemma-3-12b-it": 6,  # 8 full and 40 windowed layers: groups of 8
    "openai/gpt-oss-20b": 2,  # 12 and 12
    "Qwen/Qwen3-Next-80B-A3B-Instruct": 4,  # 12 full and 36 recurrent: groups of 12
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": 4,  # 12 full and 36 chunked
    "deepseek-ai/DeepSeek-V2-Lite": 1,
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": 5,  # 6 full and 23 recurrent: 1 + 4 groups
    "zai-org/GLM-5": 1,
}


@pytest.mark.parametrize("model", GROUPS)
def test_a_run_sizes_and_replays_it(make_spec: Make, model: str) -> None:
    spec = make_spec(model=model)
    spec["fleet"] = {"gpus": ["H200-SXM-141GB"], "max_gpus": 16, "gpus_per_node": 16}
    spec["grid"] = {
        "axes": {
            "tp": [1, 2, 4, 8], "pp": [1, 2], "weight_dtype": ["bf16", "fp8"],
            "max_num_seqs": [64], "max_num_batched_tokens": [2048],
        }
    }  # fmt: skip
    spec["rank"] = {"objective": "num_gpus"}
    result = sieve.run(spec)
    assert result.answer["status"] in {"answer", "weak_evidence", "no_slo"}
    assert len(result.data["ranking"]) > 0
    sized = result.candidates.filter(pl.col("batch").is_not_null())
    assert (sized["kv_tokens"] > 0).all()
    mean = sized["blocks_per_request"] * sized["block_size"]
    assert (mean >= 0).all()
    first = result.data["ranking"][0]["candidate_id"]
    report = detail.replay(spec, first, record_steps=True)
    assert report.steps is not None
    assert report.requests["finish_s"].null_count() == 0
    assert report.steps["used_blocks"].max() <= report.data["engine"]["num_gpu_blocks"]
    assert len(report.data["engine"]["groups"]) == GROUPS[model]

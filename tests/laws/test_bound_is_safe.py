"""What stage 4 rejects on a bound would not have cleared: replay it and see."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

from sieve.api import prepare
from sieve.frames import REJECTION_COLUMNS
from sieve.parallel import LocalExecutor
from sieve.spec import load_spec
from stages import s1_validity, s2_memory_fit, s3_batch_sizing, s4_shortlist, s5_simulate, s6_rank

FLEET = {"gpus": ["H100-SXM-80GB", "L40S-48GB"], "max_gpus": 4}
GRID = {
    "axes": {
        "tp": [1, 2, 4],
        "pp": [1, 2],
        "replicas": {"range": [1, "max_gpus"]},
        "weight_dtype": ["bf16", "fp8"],
        "kv_cache_dtype": ["auto", "fp8"],
        "max_num_seqs": [16, 256],
        "max_num_batched_tokens": [2048, 8192],
    }
}
CASES = {
    "chat": {
        "traffic": {"trace": "chat", "requests": 400, "rate_per_s": 12, "levels": [1.0]},
        "slo": {"ttft_p99": "1 s", "tpot_p99": "30 ms", "e2e_p99": "15 s"},
    },
    "long prompts, gates": {
        "traffic": {
            "levels": [1.0],
            "synthetic": {
                "requests": 300,
                "isl": {"mean": 6000.0, "stdev": 2500.0, "min": 200},
                "osl": {"mean": 200.0, "stdev": 100.0},
                "arrival": {"gamma": {"rate_per_s": 2.0, "cv": 2.0}},
            },
        },
        "slo": {
            "attainment": {"share": 0.9, "ttft": "3 s", "tpot": "60 ms"},
            "goodput": {"per_s": 1.5, "ttft": "3 s"},
        },
    },
    "closed loop": {
        "traffic": {
            "levels": [1.0],
            "synthetic": {"requests": 300, "isl": 1000, "osl": 200, "arrival": {"closed_loop": 48}},
        },
        "slo": {"output_tokens_per_s": 2500, "tpot_mean": "25 ms"},
    },
    "shared prefixes": {
        "traffic": {"trace": "shared.jsonl", "format": "mooncake_trace", "levels": [1.0]},
        "slo": {"ttft_p99": "700 ms", "tpot_p99": "30 ms"},
    },
}


def write_shared_prefixes(path):
    """300 requests, six a second, on four prompts of 8,192 tokens with some of their own."""
    rng = np.random.default_rng(5)
    lines = []
    for i in range(300):
        own = int(rng.integers(10, 500))
        ids = [100 * (i % 4) + j for j in range(16)] + [10_000 + i]
        lines.append(
            {
                "timestamp": 1000.0 * i / 6,
                "input_length": 8192 + own,
                "output_length": int(rng.integers(20, 200)),
                "hash_ids": ids,
            }
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


RANKS = {
    "axes": {
        "tp": [1, 2],
        "ep": [1, 2, 4],
        "data_parallel_size": [1, 2, 4],
        "max_num_seqs": [16, 256],
        "max_num_batched_tokens": [512, 2048, 8192],
    }
}
LOADS = {
    "few requests": {"requests": 60, "rate": 1.0, "slo": {"ttft_p50": "65 ms"}},
    "many requests": {"requests": 500, "rate": 30.0, "slo": {"tpot_p99": "25 ms"}},
}


def cut_by_a_bound(spec, folder):
    """Return the candidates that a bound rejects, and their context."""
    context, grid = prepare(load_spec(spec, base_dir=folder), LocalExecutor())
    frame = grid.candidates
    for stage in (s1_validity, s2_memory_fit, s3_batch_sizing):
        frame = stage.run(frame, context).admitted
    rejected = s4_shortlist.run(frame, context).rejected
    cut = rejected.filter(pl.col("reason") == "bound_misses_slo").drop(
        *[c for c in REJECTION_COLUMNS if c in rejected.columns]
    )
    return cut, context


def verdicts_of(cut, context):
    replayed = s5_simulate.run(cut, context).admitted
    return s6_rank.run(replayed, context).admitted["verdict"].to_list()


@pytest.mark.parametrize("name", CASES)
def test_no_candidate_that_a_bound_rejects_clears(name, tmp_path):
    write_shared_prefixes(tmp_path / "shared.jsonl")
    spec = {"name": "law", "model": "Qwen/Qwen3-14B", "fleet": FLEET, "grid": GRID, **CASES[name]}
    cut, context = cut_by_a_bound(spec, tmp_path)
    assert len(cut) >= 50, "the case must make the bound work"
    assert "clears" not in verdicts_of(cut, context)


@pytest.mark.parametrize("name", LOADS)
def test_a_bound_is_safe_for_ranks_that_share_experts(name, tmp_path):
    """A rank may have the others' GPUs almost to itself: the bound must allow for it."""
    load = LOADS[name]
    traffic = {
        "levels": [1.0],
        "synthetic": {
            "requests": load["requests"], "isl": 3000, "osl": 100,
            "arrival": {"poisson_per_s": load["rate"]},
        },
    }  # fmt: skip
    fleet = {"gpus": ["H100-SXM-80GB"], "max_gpus": 8}
    spec = {
        "name": "law", "model": "Qwen/Qwen3-30B-A3B", "fleet": fleet, "grid": RANKS,
        "traffic": traffic, "slo": load["slo"],
    }  # fmt: skip
    cut, context = cut_by_a_bound(spec, tmp_path)
    assert (cut["data_parallel_size"] > 1).sum() >= 3, "the case must make the bound work"
    assert "clears" not in verdicts_of(cut, context)

"""Engine profiles: which one answers, and defaults that depend on the accelerator."""

from __future__ import annotations

import pytest

from sieve.catalog.accelerators import inline_gpu, load_gpu
from sieve.catalog.engines import default_for_gpu, list_engines, load_engine
from sieve.errors import CatalogError


@pytest.mark.parametrize("text", ["vllm", "vllm==0.33", "vllm==0.33.0", "vLLM == 0.33.2"])
def test_known_versions(text: str) -> None:
    profile = load_engine(text)
    assert (profile.name, profile.version, profile.requested) == ("vllm", "0.33", text)
    assert not profile.substituted
    assert profile.covers == ("0.26", "0.33")
    assert profile.ledger["graphs_inside_budget"] == 1
    assert profile.ledger["non_torch_bytes_tp1"] == 2**28
    assert profile.defaults["gpu_memory_utilization"] == 0.92
    assert profile.replay["full_reservation"] is False
    assert profile.replay["reserve_full_isl"] is True


@pytest.mark.parametrize(
    ("wanted", "version", "inside", "share", "bytes_per_logit"),
    [
        ("0.5.3", "0.5", 0, 0.90, 37.5),
        ("0.6.6", "0.7", 0, 0.90, 37.5),
        ("0.9.2", "0.9", 0, 0.90, 37.5),
        ("0.10.2", "0.15", 0, 0.90, 37.5),
        ("0.16.0", "0.16", 0, 0.90, 37.5),
        ("0.17", "0.19", 0, 0.90, 14),  # activations fell by more than half
        ("0.19", "0.19", 0, 0.90, 14),
        ("0.20.1", "0.20", 0, 0.90, 14),
        ("0.21.0", "0.25", 1, 0.90, 14),  # graphs entered the budget
        ("0.26", "0.33", 1, 0.92, 14),
    ],
)
def test_each_version_has_its_range(
    wanted: str, version: str, inside: int, share: float, bytes_per_logit: float
) -> None:
    profile = load_engine(f"vllm=={wanted}")
    assert (profile.version, profile.substituted) == (version, False)
    assert profile.ledger["graphs_inside_budget"] == inside
    assert profile.defaults["gpu_memory_utilization"] == share
    assert profile.ledger["activation_bytes_per_logit"] == bytes_per_logit
    assert profile.notes


@pytest.mark.parametrize(
    ("wanted", "version"), [("0.3.2", "0.4"), ("0.40", "0.33"), ("1.2", "0.33")]
)
def test_a_version_outside_every_range_is_substituted(wanted: str, version: str) -> None:
    profile = load_engine(f"vllm=={wanted}")
    assert profile.substituted
    assert profile.version == version
    assert wanted in profile.notes[0]
    assert "may differ" in profile.notes[0]


def test_an_older_profile_says_only_what_differs() -> None:
    old, new = load_engine("vllm==0.10"), load_engine("vllm")
    assert old.rules == new.rules
    assert old.defaults["block_size"] == new.defaults["block_size"]
    assert old.cache["state_blocks"] == 1
    assert new.cache["state_blocks"] == 2


def test_reference() -> None:
    profile = load_engine("reference")
    assert profile.version == ""
    assert profile.rules == ("tp_divides", "pp_divides", "node", "gpu_budget")
    assert profile.ledger == {"utilisation": 0.9, "page_tokens": 16, "reserve_frac": 0.01}
    assert profile.replay["full_reservation"] is True
    assert default_for_gpu(profile, "max_num_seqs", load_gpu("h100-sxm")) == 256


def test_rule_order() -> None:
    assert load_engine("vllm").rules == (
        "tp_divides_heads",
        "kv_heads_tp",
        "tp_divides_width",
        "vocab_tp",
        "quant_blocks",
        "data_parallel",
        "ep_size",
        "ep_divides_experts",
        "pp_layers",
        "decode_context_parallel",
        "node",
        "gpu_budget",
        "tokens_cover_seqs",
        "tokens_cover_len",
        "context_limit",
        "rates_known",
        "dtype_supported",
        "model_len",
    )


@pytest.mark.parametrize(
    ("gpu", "tokens", "seqs"),
    [
        ("H100-SXM-80GB", 8192, 1024),
        ("H200-SXM-141GB", 8192, 1024),
        ("A100-SXM-80GB", 2048, 256),
        ("DGX-Spark-GB10", 2048, 256),
        ("L40S-48GB", 2048, 256),
        ("B200-SXM-180GB", 16384, 1024),
    ],
)
def test_defaults_by_memory(gpu: str, tokens: int, seqs: int) -> None:
    profile = load_engine("vllm")
    assert default_for_gpu(profile, "max_num_batched_tokens", load_gpu(gpu)) == tokens
    assert default_for_gpu(profile, "max_num_seqs", load_gpu(gpu)) == seqs
    assert default_for_gpu(profile, "block_size", load_gpu(gpu)) == 16


def test_exceptions_hold_for_inline_parts() -> None:
    gpu = inline_gpu({"name": "mine", "like": "A100-SXM-80GB"})
    assert default_for_gpu(load_engine("vllm"), "max_num_seqs", gpu) == 256
    with pytest.raises(CatalogError, match="no default for 'max_num_seq'; nearest: max_num_seqs"):
        default_for_gpu(load_engine("vllm"), "max_num_seq", gpu)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sglang", "unknown engine 'sglang'.*available: reference, vllm==0.33"),
        ("sglang==0.5", "unknown engine 'sglang'"),
        ("vllm==abc", "version 'abc'"),
        ("vllm==0..33", "version '0..33'"),
        ("vllm==", "is not `name`"),
        ("vllm>=0.33", "is not `name`"),
        ("", "is not `name`"),
        ("reference==1", "has no versions"),
    ],
)
def test_bad_engines(text: str, words: str) -> None:
    with pytest.raises(CatalogError, match=words):
        load_engine(text)


def test_every_profile_lists_itself() -> None:
    assert [load_engine(profile.requested) for profile in list_engines()] == list_engines()

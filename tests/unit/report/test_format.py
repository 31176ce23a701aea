from __future__ import annotations

import math
from pathlib import Path

import pytest

from sieve.report import format as fmt
from sieve.validity.rules import RULES


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (8.7e-5, "87.0 µs"),
        (0.00099996, "1.00 ms"),
        (0.352, "352 ms"),
        (0.99951, "1.00 s"),
        (2.31, "2.31 s"),
        (9.999, "10.0 s"),
        (99.96, "100 s"),
        (1234.6, "1,235 s"),
        (None, "unknown"),
        (math.nan, "unknown"),
        (math.inf, "infinite s"),
    ],
)
def test_seconds(value: float | None, text: str):
    assert fmt.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.9911, "1.99 USD"), (0.01234, "0.0123 USD"), (12345.6, "12,346 USD"), (None, "unknown")],
)
def test_money(value: float | None, text: str):
    assert fmt.money(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 %"),
        (1, "100 %"),
        (0.9, "90 %"),
        (0.9995, "99.95 %"),
        (0.99999, "99.999 %"),
        (0.9999999, "above 99.999 %"),
        (1e-9, "below 0.001 %"),
        (1.00001, "100.001 %"),
        (0.352, "35.2 %"),
        (None, "unknown"),
    ],
)
def test_a_share_that_is_not_whole_never_reads_as_whole(value: float | None, text: str):
    assert fmt.share(value) == text


def test_counts_and_bytes():
    assert fmt.count(15360) == "15,360"
    assert fmt.count(None) == "unknown"
    assert fmt.gib(16 * 2**30) == "16.0 GiB"
    assert fmt.gib(math.nan) == "unknown"


def test_quantity_reads_the_unit_of_a_rejection():
    assert fmt.quantity(0.051, "tpot:p99<=50ms") == "51.0 ms"
    assert fmt.quantity(2**34, "bytes of weights, at most") == "16.0 GiB of weights, at most"
    assert fmt.quantity(0.5, "") == "50 %"
    assert fmt.quantity(5000, "tokens/s") == "5,000 tokens/s"
    assert fmt.limit_text(0.05, "s") == "50 ms"
    assert fmt.limit_text(100, "s") == "100 s"


def test_metrics_in_words():
    assert fmt.metric_name("ttft_p99_s") == "TTFT p99"
    assert fmt.metric_name("usd_per_mtok") == "USD per million output tokens"
    assert fmt.metric_value("goodput_per_s", 11.5) == "11.5 requests/s"
    assert fmt.interval("ttft_p99_s", 0.2463, 0.3527, 0.505) == ("353 ms", "246 to 505 ms")
    assert fmt.interval("ttft_p99_s", 0.9, 1.1, 1.3) == ("1.10 s", "900 ms to 1.30 s")
    assert fmt.interval("usd_per_mtok", 1.91, 1.99, 2.0) == ("1.99", "1.91 to 2.00")
    assert fmt.interval("e2e_p99_s", None, 1.0, 2.0) == ("1.00 s", "")


def test_deployment():
    row = {
        "gpu": "H100-SXM-80GB", "num_gpus": 16, "tp": 4, "pp": 2, "ep": 4, "replicas": 2,
        "weight_dtype": "fp8", "kv_cache_dtype": "auto",
    }  # fmt: skip
    assert fmt.deployment(row) == (
        "16 × H100-SXM-80GB (TP 4 × PP 2 × 2 replicas, EP 4, FP8 weights, auto KV cache)"
    )
    assert "unknown" in fmt.deployment({})
    assert "unknown" in fmt.short_deployment({})


def test_every_reason_a_stage_gives_has_a_sentence():
    # Stages import the simulator, so their reasons are read from the declarations' source.
    stages = Path(__file__).parents[3] / "stages"
    text = "".join(p.read_text("utf-8") for p in sorted(stages.glob("s*.py")))
    given = ["weights_overflow", "no_page", "max_model_len", "pages", "tpot", "bound_misses_slo",
             "not_selected", "queue_grows_without_bound"]  # fmt: skip
    assert all(f'"{reason}"' in text for reason in given)
    for reason in [*RULES, *given, "request_exceeds_cache"]:
        assert fmt.is_reason(reason)
        assert fmt.reason_sentence(reason).endswith(".")
    assert fmt.reason_sentence("made_up") == "Made up."

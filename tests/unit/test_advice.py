"""Advice: its numbers against ledger and step tables, its verdicts on cases made to have one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sieve.advice import Advice, advise
from sieve.advice.deployment import (
    Deployment,
    Lengths,
    Replica,
    deployments,
    prefill_work_s,
    prompt_times_s,
)
from sieve.advice.pools import pools
from sieve.advice.quantising import smaller_formats
from sieve.advice.service import largest_budget, service
from sieve.advice.words import KINDS, Objectives
from sieve.catalog.accelerators import load_gpu
from sieve.catalog.engines import load_engine
from sieve.catalog.models import load_model
from sieve.errors import InvalidInput
from sieve.memory.ledger import LedgerInput, ledger
from sieve.perf.base import ServingShape
from sieve.perf.capacity import Workload, prefill_cost_s, prompt_s
from sieve.perf.compose import build_step_table
from sieve.report.advice import print_advice

MODEL, GPU = load_model("Qwen/Qwen3-8B"), load_gpu("H100-SXM-80GB")
PROMPTS = np.array([200] * 50 + [1000] * 40 + [6000] * 10)
ANSWERS = np.full(100, 250)


def ask(**changes: Any) -> list[Advice]:
    given: dict[str, Any] = {"input_tokens": PROMPTS, "output_tokens": ANSWERS, **changes}
    return advise(given.pop("model", MODEL), given.pop("gpu", GPU), **given)


def of(topic: str, advice: list[Advice]) -> Advice:
    return next(piece for piece in advice if piece.topic == topic)


def made(table: Any, *, held: int = 64, prompts: Any = PROMPTS, seqs: int = 128) -> Deployment:
    """A replica whose steps are a formula; the ledger is asked only where requests are split."""
    lengths = Lengths(np.asarray(prompts), np.full(len(prompts), 250))
    replica = Replica(
        MODEL, GPU, load_engine("vllm"), tp=1, max_num_seqs=seqs, max_num_batched_tokens=2048,
        utilisation=0.9, lengths=lengths,
    )  # fmt: skip
    return Deployment(replica, lengths, "bf16", "auto", held * 1000, held, table)


@pytest.fixture
def step_table() -> Any:
    return build_step_table(ServingShape(MODEL, GPU, 1, 1, 1, "bf16", "auto", 2048, 128, 6250, 2.0))


def test_memory_figures_are_the_ledgers() -> None:
    piece = next(a for a in ask() if "fp8 weights, 16-bit" in a.text)
    mean, longest = 1350, 6250  # 200 x .5 + 1000 x .4 + 6000 x .1 + 250; 6000 + 250
    two = np.ones(2, np.int64)
    for bytes_per_param, when in ((2.0, "now"), (1.0, "then")):
        book = ledger(
            MODEL,
            load_engine("vllm"),
            LedgerInput(
                memory_bytes=GPU.memory_bytes * np.ones(2), tp=two, pp=two,
                weight_bytes_per_param=np.full(2, bytes_per_param),
                load_bytes_per_param=np.full(2, bytes_per_param),
                kv_bytes_per_element=np.full(2, 2.0), max_num_seqs=1024 * two,
                max_num_batched_tokens=8192 * two, block_size=16 * two,
                utilisation=np.full(2, 0.92), max_model_len=np.array([mean, longest]),
            ),
        )  # fmt: skip
        assert piece.figure(f"mean requests {when}") == book.num_blocks[0] // -(-mean // 16)
        assert piece.figure(f"cache tokens {when}") == int(book.concurrency[1] * longest)
    # 36 layers x 8 KV heads x 128 x 2 x 2 bytes = 147,456 bytes a token; the linear parameters,
    # all but embedding and head (151,936 x 4096 each), shrink by a byte.
    gain = piece.figure("cache tokens then") - piece.figure("cache tokens now")
    assert gain == pytest.approx((8.19e9 - 2 * 151_936 * 4096) / 147_456, rel=0.01)


def test_step_figures_are_the_step_tables() -> None:
    piece = next(a for a in ask(max_num_seqs=128) if "bf16 weights, fp8" in a.text)
    context = (ANSWERS * (PROMPTS + ANSWERS / 2)).sum() / ANSWERS.sum()
    for dtype, name in (("auto", "decode step now"), ("fp8", "decode step then, same batch")):
        table = build_step_table(
            ServingShape(MODEL, GPU, 1, 1, 1, "bf16", dtype, 8192, 128, 6250, 2.0)
        )
        assert piece.figure(name) == pytest.approx(float(table.decode_step_s(128, context)))
    assert piece.figure("decode step then, same batch") < piece.figure("decode step now")


def test_a_larger_cache_buys_nothing_where_max_num_seqs_stops_the_batch() -> None:
    advice = ask(max_num_seqs=8)
    piece = next(a for a in advice if a.text.startswith("bf16 weights, fp8"))
    assert piece.figure("mean requests then") > piece.figure("mean requests now")
    assert piece.figure("decode step then, own batch") == piece.figure(
        "decode step then, same batch"
    )
    assert "of 8 takes" in piece.text


def test_choices_without_gain_are_named_with_the_warning() -> None:
    warning = of("quality", ask())
    assert warning.kind == "warning"
    assert "quantised cache costs more quality than quantised weights" in warning.text
    assert "take the higher precision" in warning.text
    now = warning.figure("rate now")
    for name, words in (
        ("fp8/auto", "fp8 weights, 16-bit"), ("int4/auto", "int4 weights, 16-bit"),
        ("bf16/fp8", "bf16 weights, fp8"), ("fp8/fp8", "fp8 weights, fp8"),
    ):  # fmt: skip
        _, _, idle = warning.text.partition("Without gain")
        assert (words in idle) == (warning.figure(f"rate of {name}") <= now)


def test_formats_smaller_than_what_is_served() -> None:
    assert smaller_formats(MODEL, "bf16", "auto") == [
        ("fp8", "auto"), ("int4", "auto"), ("bf16", "fp8"), ("fp8", "fp8"),
    ]  # fmt: skip
    assert smaller_formats(MODEL, "fp8", "fp8") == [("int4", "fp8")]
    assert smaller_formats(MODEL, "int4", "fp8") == []
    assert [a.topic for a in ask(weight_dtype="int4", kv_cache_dtype="fp8")] == ["service", "pools"]


def test_what_does_not_fit_is_said_with_what_makes_it_fit() -> None:
    advice = ask(model=load_model("meta-llama/Llama-3.1-70B-Instruct"))
    assert [a.topic for a in advice] == ["fit", *["quantise"] * 4, "quality"]
    assert "Quantise, raise TP" in advice[0].text
    assert "makes it fit" in next(a for a in advice if a.text.startswith("int4")).text
    assert (
        "still does not hold"
        in next(a for a in advice if a.text.startswith("bf16 weights, fp8")).text
    )


def test_batch_within_tpot_by_hand(tables: Any) -> None:
    """A step is 10 ms + 0.1 ms a decode; 250 tokens of answer carry 1100 prompt tokens of 10 us.

    A token then takes 10 ms + b x (0.1 ms + 11 ms / 250): at 24.4 ms, b = 100.
    """
    table = tables.affine(base=0.01, per_decode=1e-4, per_prompt=1e-5)
    deployment = made(table)
    assert deployment.tpot_s[:2] == pytest.approx([0.010144, 0.010288])
    assert deployment.batch_within(Objectives(tpot_s=0.0244001)) == 100
    assert deployment.batch_within(Objectives(tpot_s=0.0101)) == 0
    assert deployment.batch_within(Objectives()) == 128
    assert deployment.usable(Objectives()) == 64
    first = float(deployment.prompts_s(PROMPTS).mean())
    limit = first + 249 * 0.010144
    assert deployment.batch_within(Objectives(e2e_s=limit + 1e-9)) == 1
    assert deployment.rate(100) == pytest.approx(100 / 0.0244)


def test_array_forms_agree_with_those_for_one_prompt(step_table: Any) -> None:
    tokens = np.array([1, 16, 2047, 2048, 2049, 6000])
    one_by_one = [prompt_s(step_table, float(t), 2048) for t in tokens]
    assert prompt_times_s(step_table, tokens, 2048) == pytest.approx(one_by_one)
    alike = np.full(7, 900)
    load = Workload(900.0, 250.0, 1000.0, None, None, 0.0, 1150)
    expected = prefill_cost_s(step_table, load, np.arange(1, 65), 2048)
    assert prefill_work_s(step_table, alike, 64, 2048) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("objectives", "head"),
    [
        (Objectives(), "Throughput first"),
        (Objectives(tpot_s=1.0, ttft_s=1.0), "Throughput first"),
        (Objectives(tpot_s=0.015), "Latency first"),
        (Objectives(e2e_s=3.0), "Latency first"),
        (Objectives(ttft_s=0.001), "Latency first"),
        (Objectives(ttft_s=0.03), "Latency first"),
        (Objectives(ttft_s=0.05, tpot_s=1.0), "Mixed"),
    ],
)
def test_which_comes_first(objectives: Objectives, head: str, tables: Any) -> None:
    """Median prompt 600 tokens: 16 ms; p99 6000 tokens in three chunks: 90 ms."""
    piece = service(made(tables.affine(base=0.01, per_decode=1e-4, per_prompt=1e-5)), objectives)
    assert piece.text.startswith(f"{head}. ")
    assert piece.kind == "estimate"
    assert piece.figure("p50 prompt alone") == pytest.approx(0.016)
    assert piece.figure("p99 prompt alone") == pytest.approx(0.090)


def test_settings_name_the_batch_that_keeps_the_objective(tables: Any) -> None:
    deployment = made(tables.affine(base=0.01, per_decode=1e-4, per_prompt=1e-5))
    piece = service(deployment, Objectives(tpot_s=0.015))
    # 10 ms + b x 0.144 ms within 15 ms: 34; a step with 34 decodes leaves 1.6 ms: 160 tokens.
    assert "only 34 keep TPOT 15 ms" in piece.text
    assert "Start at max_num_seqs 34" in piece.text
    assert piece.figure("token budget within TPOT") in {34 + 159, 34 + 160}
    assert largest_budget(deployment, 34, 0.0134) is None
    assert largest_budget(deployment, 34, 1.0) == 2048
    assert "No setting" in service(deployment, Objectives(tpot_s=0.005)).text


def test_equal_prompts_are_one_pool(tables: Any) -> None:
    table = tables.affine(base=0.01, per_prompt=1e-5)
    piece = pools(made(table, prompts=np.full(30, 500)), Objectives(ttft_s=0.02))
    assert piece.kind == "hypothesis"
    assert "all prompts are of one length" in piece.text


def test_a_split_keeps_short_prompts_within_ttft(tables: Any) -> None:
    """Times 12 to 130 ms; the largest short pool whose p50 + p99 keeps 120 ms, by trying all."""
    prompts = np.random.default_rng(3).permutation(np.arange(200, 6200, 60))
    deployment = made(tables.affine(base=0.01, per_prompt=1e-5), prompts=prompts)
    piece = pools(deployment, Objectives(ttft_s=0.12))
    ordered, best = np.sort(prompts), 0
    for size in range(1, len(prompts)):
        alone = deployment.prompts_s(ordered[:size])
        wait = sum(np.percentile(alone, q, method="higher") for q in (50, 99))
        best = size if wait <= 0.12 else best
    assert piece.figure("prompts of the short pool, at most") == ordered[best - 1]
    assert piece.figure("requests of the short pool") == best / len(prompts)
    assert 0 < piece.figure("GPUs of the short pool") < 1
    assert "Two pools could beat one" in piece.text
    assert "Simulate both" in piece.text


def test_no_pools_where_ttft_has_room(tables: Any) -> None:
    piece = pools(made(tables.affine(base=0.01, per_prompt=1e-5)), Objectives(ttft_s=5.0))
    assert "No objective asks for two pools" in piece.text
    text = pools(made(tables.affine(base=0.01, per_prompt=1e-5)), Objectives(ttft_s=0.001)).text
    assert "misses TTFT even behind one like it" in text


def test_prefill_work_of_the_longest_tenth(tables: Any) -> None:
    """Ten of 6000 tokens take 10 x 90 ms of 0.9 + 40 x 20 + 50 x 12 ms."""
    piece = pools(made(tables.affine(base=0.01, per_prompt=1e-5)), Objectives())
    share = piece.figure("prefill work of the longest prompts")
    assert share == pytest.approx(0.9 / (0.9 + 0.8 + 0.6))


def test_every_figure_says_where_it_comes_from() -> None:
    advice = ask(ttft_s=0.1, tpot_s=0.03)
    assert {a.topic for a in advice} == {"service", "pools", "quantise", "quality"}
    for piece in advice:
        assert piece.kind in KINDS
        assert piece.figures
        for figure in piece.figures:
            assert figure.source
            assert figure.unit in {"tokens", "requests", "s", "tokens/s", "ratio", "share"}
            assert figure.value is None or np.isfinite(figure.value)
    with pytest.raises(KeyError):
        advice[0].figure("nothing")


def test_more_memory_never_holds_less() -> None:
    small, large = (
        of("service", ask(gpu=replace(GPU, memory_bytes=m * 1e9))) for m in (60, 80)
    )  # fmt: skip
    name = "batch of cache and max_num_seqs"
    assert small.figure(name) <= large.figure(name)


def test_deployments_of_experts() -> None:
    """The FP8 weights of a mixture of experts shrink with the experts."""
    advice = ask(model=load_model("Qwen/Qwen3-30B-A3B"), max_num_seqs=64)
    piece = next(a for a in advice if a.text.startswith("fp8 weights, 16-bit"))
    assert piece.figure("cache tokens then") > 2 * piece.figure("cache tokens now")


def test_deployments_keep_the_order_of_formats() -> None:
    replica = made(None).replica
    found = deployments(replica, [("bf16", "auto"), ("fp8", "fp8")])
    assert [d.name for d in found] == ["bf16/auto", "fp8/fp8"]
    assert found[0].held < found[1].held


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_tokens": []}, "at least one"),
        ({"input_tokens": [0, 5], "output_tokens": [1, 1]}, "whole number"),
        ({"input_tokens": [1.5], "output_tokens": [1]}, "whole number"),
        ({"input_tokens": [np.nan], "output_tokens": [1]}, "whole number"),
        ({"input_tokens": [1, 2], "output_tokens": [1]}, "give one each"),
        ({"tp": 0}, "tp is 0"),
        ({"ttft_s": 0.0}, "ttft_s is 0"),
        ({"tpot_s": float("nan")}, "tpot_s is nan"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 32}, "below max_num_seqs"),
        ({"gpu_memory_utilization": 1.2}, "at most 1"),
        ({"weight_dtype": "fp7"}, "fp7"),
        ({"kv_cache_dtype": "fp7"}, "fp7"),
        ({"engine": load_engine("reference")}, "real engine"),
    ],
)
def test_invalid_input_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ask(**changes)


def test_the_terminal_shows_text_kinds_and_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    advice = ask(ttft_s=0.1, tpot_s=0.03)
    print_advice(advice)
    plain = capsys.readouterr().out
    for words in ("Latency or throughput (estimate)", "One pool or two (hypothesis)",
                  "Answer quality (warning)", "Step times assume:"):  # fmt: skip
        assert words in plain
    print_advice(advice, figures=True)
    full = capsys.readouterr().out
    assert "p99 prompt alone" in full
    assert "memory ledger" in full
    assert len(full) > len(plain)
    assert max(map(len, full.splitlines())) <= 80

from __future__ import annotations

import base64
import copy
import hashlib
import html
import math
from html.parser import HTMLParser
from typing import Any

import polars as pl
import pytest

from sieve.frames import METRICS, bound_column
from sieve.report.format import limit_text, plain
from sieve.report.html import render_report
from sieve.report.view import MAX_POINTS, MAX_ROWS

LEVELS = (0.5, 1.0, 1.5)
HOSTILE = "<script>alert(1)</script>\"'&\n</title><svg onload=x>{{ 7*7 }}"
VOID = {"meta", "br", "hr", "img", "link", "input"}


class Balance(HTMLParser):
    """Collects tags that are closed out of order, ids, and every attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.faults: list[str] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        self.ids += [str(value) for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def without_script(page: str) -> str:
    """Return the page without its one script, after holding that to the page's own policy."""
    before, _, rest = page.partition("<script>")
    script, _, after = rest.partition("</script>")
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    allowed = f"script-src 'sha256-{base64.b64encode(digest).decode()}'"
    assert allowed in html.unescape(before)
    assert "default-src 'none'" in html.unescape(before)
    return before + after


def parsed(page: str) -> Balance:
    """Return the parsed page after holding it to what every report must be."""
    page = without_script(page)
    found = Balance()
    found.feed(page)
    found.close()
    assert found.faults == []
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert "script" not in found.tags
    assert not {name for name in found.attributes if name.startswith("on")}
    assert "src" not in found.attributes
    assert "http://" not in page
    assert "https://" not in page
    return found


def text_of(page: str) -> str:
    return " ".join(" ".join(parsed(page).text).split())


def row(i: int, verdict: str, group: int, gpu: str = "H100-SXM-80GB") -> dict[str, Any]:
    values = {
        "output_tokens_per_s": 2438.6, "output_tokens_per_s_per_gpu": 609.7, "ttft_p50_s": 0.067,
        "ttft_p99_s": 0.3527, "tpot_p50_s": 0.0174, "tpot_p99_s": 0.0308, "e2e_p99_s": 11.39,
        "goodput_per_s": 11.5, "slo_attainment": 0.9995, "usd_per_mtok": 1.991,
    }  # fmt: skip
    scale = 1 + 0.01 * i
    metrics = {
        name: {"low": 0.9 * x * scale, "mid": x * scale, "high": 1.2 * x * scale}
        for name, x in values.items()
    }
    return {
        "rank": group, "tie_group": group, "candidate_id": f"{gpu.lower()}.tp2.r2.n{i}",
        "gpu": gpu, "tp": 2, "pp": 1, "ep": 1, "replicas": 2, "num_gpus": 4 + i % 3,
        "weight_dtype": "fp8", "kv_cache_dtype": "fp8", "max_num_seqs": 512,
        "max_num_batched_tokens": 8192, "verdict": verdict, **metrics, "evidence": "interpolated",
        "evidence_shares": {
            "measured": 0.2, "interpolated": 0.7, "extrapolated": 0.06, "roofline": 0.04
        },
    }  # fmt: skip


def run(
    status: str | None = "answer", verdicts: tuple[str, ...] = ("clears", "clears", "misses")
) -> tuple[dict[str, Any], pl.DataFrame, pl.DataFrame]:
    ranking = [row(i, v, 1 if i < 2 else 2) for i, v in enumerate(verdicts)]
    ids = [r["candidate_id"] for r in ranking]
    names = ("validity", "memory_fit", "batch_sizing", "shortlist", "simulate", "rank", "confirm")
    result: dict[str, Any] = {
        "schema_version": "1.0",
        "sieve_version": "0.1.0",
        "spec": {
            "name": "chat", "model": "Qwen/Qwen3-32B", "engine": "vllm", "seed": 7,
            "slo": ["ttft:p99<=2s", "tpot:p99<=50ms", "attainment(ttft<=2s)>=0.95"],
            "rank": {"objective": "usd_per_mtok", "confidence": 0.9},
        },
        "inputs": [{"name": "gpu:H100", "sha256": "ab" * 32}],
        "assumptions": [{"about": "traffic", "text": "drawn anew", "source": "a paper"}],
        "stages": [
            {
                "number": i + 1, "name": name, "num_in": 15360, "num_admitted": 15000,
                "num_rejected": 360, "reasons": {"gpu_budget": 300, "made_up": 60},
                "elapsed_s": 0.0123,
            }
            for i, name in enumerate(names)
        ],
        "answer": {
            "status": status, "fewest_gpus": None, "best_per_gpu": None, "cheapest": None,
            "tie_group": [], "settle": None,
        },
        "ranking": ranking,
        "nearest_misses": [],
        "elapsed_s": 9.87,
    }  # fmt: skip
    if status in ("answer", "weak_evidence"):
        result["answer"].update(
            fewest_gpus=ids[0], best_per_gpu=ids[-1], cheapest=ids[0], tie_group=ids[:2],
            settle={
                "candidate_ids": ids[:2], "level": 1.0, "metric": "usd_per_mtok",
                "decides_at": 2.0134, "num_requests": 2000,
            },
        )  # fmt: skip
    if status in ("no_slo", None):
        result["nearest_misses"] = [
            {
                "candidate_id": "x.tp2", "num_gpus": 4, "stage": 5, "misses": "ttft:p99<=2s",
                "observed": 3.0, "limit": 2.0, "unit": "s", "off_by_frac": 0.5,
            },
            {
                "candidate_id": "x.tp1", "num_gpus": 4, "stage": 3, "misses": "tpot",
                "observed": 0.0, "limit": 1.0, "unit": "requests within the TPOT target",
                "off_by_frac": math.inf,
            },
        ]  # fmt: skip
    simulated = []
    for r in ranking:
        for level in LEVELS:
            flat = {m: r[m]["mid"] * level for m in METRICS}
            for m in METRICS:
                flat |= {bound_column(m, e): r[m][e] * level for e in ("low", "high")}
            simulated.append(
                {"candidate_id": r["candidate_id"], "level": level, "queue_growth": 0.0, **flat}
            )
    candidates = pl.DataFrame(
        [
            {k: v for k, v in r.items() if k not in METRICS and k != "evidence_shares"}
            | {
                "weight_bytes_per_gpu": 16.0 * 2**30, "reserved_bytes_per_gpu": 4.0 * 2**30,
                "kv_bytes_per_gpu": 52.0 * 2**30, "kv_tokens": 870_000, "batch": 512,
                "batch_limit": "max_num_seqs", "gpu_memory_utilization": 0.92,
            }
            for r in ranking
        ]
    )  # fmt: skip
    return result, candidates, pl.DataFrame(simulated)


def test_an_answer_is_said_in_one_sentence_with_its_confidence():
    text = text_of(render_report(*run()))
    assert (
        "4 × H100-SXM-80GB (TP 2 × 2 replicas, FP8 weights, FP8 KV cache) clears every objective "
        "at 90 % confidence for 1.99 USD per million output tokens (1.79 to 2.39); "
        "1 more candidate cannot be told apart from it."
    ) in text
    assert "2,000 requests at load 1 and compare USD per million output tokens" in text
    assert "part at 2.01 USD" in text


def test_numbers_carry_their_units():
    text = text_of(render_report(*run()))
    for part in ("353 ms", "30.8 ms", "317 to 423 ms", "99.95 %", "16.0 GiB", "870,000 tokens",
                 "15,360", "plan/h100-sxm-80gb.tp2.r2.n0/serve.sh", "9.87 s"):  # fmt: skip
        assert part in text


@pytest.mark.parametrize(
    ("status", "verdicts", "says"),
    [
        ("answer", ("clears", "clears"), "clears every objective"),
        ("weak_evidence", ("point_only", "point_only"), "No candidate clears every objective"),
        ("no_slo", ("misses",), "No candidate meets every objective; x.tp2 comes nearest"),
        ("no_slo", (), "No candidate meets every objective"),
        ("no_fit", (), "No candidate fits. Most often (60 candidates): Made up."),
        (None, (), "No answer yet: the run stopped after stage 7"),
        (None, ("clears",), "No answer yet"),
    ],
)
def test_every_status_renders(status: str | None, verdicts: tuple[str, ...], says: str):
    assert says in text_of(render_report(*run(status, verdicts)))


@pytest.mark.parametrize("frame", [pl.DataFrame(), "no rows", "ids only"])
def test_empty_frames_render(frame: pl.DataFrame | str):
    result, candidates, simulations = run()
    if isinstance(frame, pl.DataFrame):
        candidates = simulations = frame
    elif frame == "no rows":
        candidates, simulations = candidates.head(0), simulations.head(0)
    else:
        candidates = candidates.select("candidate_id")
        simulations = simulations.select("candidate_id", "level")
    text_of(render_report(result, candidates, simulations))


def test_a_run_that_stopped_before_any_stage_renders():
    result: dict[str, Any] = {"answer": {"status": None}, "ranking": [], "stages": []}
    assert "no stage has run" in text_of(render_report(result, pl.DataFrame(), pl.DataFrame()))


def test_rejected_rates_are_compared_with_their_limit():
    text = text_of(render_report(*run("no_slo", ("misses",))))
    assert "50 % above" in text
    assert "Even one request at a time takes longer per token" in text
    assert "The leader below is the first of the ranking" in text


def test_where_an_objective_breaks():
    text = text_of(render_report(*run()))
    assert "tpot:p99<=50ms : holds up to load 1 and breaks at load 1.5: 55.4 ms" in text
    assert "ttft:p99<=2s : holds at every load simulated, up to 1.5" in text


def spoil(value: Any) -> Any:
    """Return a result with every free text replaced by a hostile one."""
    if isinstance(value, dict):
        return {
            (HOSTILE if k == "gpu_budget" else k): (
                v if k in ("status", "verdict", "candidate_id", "confidence") else spoil(v)
            )
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [spoil(v) for v in value]
    return HOSTILE if isinstance(value, str) else value


@pytest.mark.parametrize("status", ["answer", "weak_evidence", "no_slo", "no_fit", None])
def test_hostile_texts_stay_texts(status: str | None):
    result, candidates, simulations = run(status)
    result = spoil(result)
    for r in result["ranking"]:
        r["candidate_id"] += HOSTILE
        r["verdict"] = '"><script>'
    renamed = pl.col("candidate_id") + HOSTILE
    page = render_report(
        result,
        candidates.with_columns(renamed, pl.lit(HOSTILE).alias("batch_limit")),
        simulations.with_columns(renamed),
    )
    assert "<script" not in without_script(page)
    assert "<svg onload" not in page
    assert "&lt;script&gt;" in page
    assert "{{ 7*7 }}" in text_of(page)


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf, "text", True])
def test_missing_numbers_are_unknown(value: Any):
    result, candidates, simulations = run()
    for r in result["ranking"]:
        for metric in METRICS:
            r[metric] = {"low": value, "mid": value, "high": value}
        r["num_gpus"] = value
    result["answer"]["settle"]["decides_at"] = value
    if isinstance(value, float) or value is None:
        wanted = [c for c in simulations.columns if c not in ("candidate_id", "level")]
        simulations = simulations.with_columns(pl.lit(value, pl.Float64).alias(c) for c in wanted)
    text = text_of(render_report(result, candidates, simulations))
    assert " nan" not in text.lower()
    if not isinstance(value, float) or math.isnan(value):
        assert "unknown" in text


def test_a_ranking_row_without_any_metric_renders():
    result, candidates, simulations = run()
    result["ranking"] = [{"rank": 1, "tie_group": 1, "candidate_id": "a"}]
    assert "unknown" in text_of(render_report(result, candidates, simulations))


def test_equal_input_gives_equal_bytes():
    first = run()
    assert render_report(*copy.deepcopy(first)) == render_report(*first)


def test_many_rows_are_cut_and_said_to_be():
    page = render_report(*run("answer", ("clears",) * 200))
    assert len(page.encode()) < 1_000_000
    assert f"The first {MAX_ROWS} of 200 ranked candidates" in text_of(page)


def test_a_run_that_replayed_everything_stays_below_six_megabytes():
    result, candidates, simulations = run()
    rows = [dict(result["ranking"][0], candidate_id=f"c{i}") for i in range(MAX_POINTS + 1)]
    page = render_report({**result, "ranking": rows}, candidates, simulations)
    assert len(page.encode()) < 6_000_000
    assert f"The first {MAX_POINTS:,} of {MAX_POINTS + 1:,}." in page
    assert page.count('<g class="mark') < 2 * (MAX_POINTS + MAX_ROWS)


def test_every_chart_has_a_title_and_a_description():
    page = render_report(*run())
    charts = page.count('class="chart"')
    assert charts == 8
    assert page.count("<desc ") == charts
    assert page.count("<caption>") == page.count("<table")


def test_a_queue_that_does_not_grow_without_bound_still_says_how_long_requests_wait():
    result, candidates, simulations = run()
    result["spec"]["traffic"] = {"rate_per_s": 12.0}
    page = text_of(render_report(result, candidates, simulations))
    middle = simulations.filter(level=LEVELS[-1])["ttft_p50_s"][0]
    assert f"no unbounded growth seen in this trace; half wait {limit_text(middle, 's')}" in page
    assert f"of {plain(12.0 * LEVELS[-1])} arriving" in page
    growing = simulations.with_columns(queue_growth=0.25)
    page = text_of(render_report(result, candidates, growing))
    assert "grows without bound, by 0.25 s of wait a second" in page
    assert "no unbounded growth" not in page

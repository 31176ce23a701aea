"""Corrections from points: shrinkage, hierarchy, left-out scores, conformal ends, expiry."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sieve.calibration.apply import correct, load_of, uncorrected
from sieve.calibration.points import Place, Point, contradiction
from sieve.calibration.serving import (
    BIAS,
    NOISE,
    SHARES,
    Calibration,
    Correction,
    conformal,
    fit_kind,
    host_term,
)
from sieve.calibration.serving_file import add_points, basis_of, merge_points, read_calibration
from sieve.errors import ResultError
from sieve.ranking.intervals import default_error

H100, L40S = "H100-SXM-80GB", "L40S-48GB"
CENTRE = Place(
    "vllm", "0.33", H100, "Qwen/Qwen3-8B", "Qwen3ForCausalLM", "bf16", "auto", 2, 1, 1, 32.0,
    1024.0, 256.0, "knee",
)  # fmt: skip


def point(number: int, factor: float = 1.2, place: Place = CENTRE, **changes: Any) -> Point:
    predicted = {"ttft": 0.2, "tpot": 0.02, "ttft_p99": 0.4, "tpot_p99": 0.03}
    facts: dict[str, Any] = {
        "id": f"{number:064d}", "file": f"b{number}.json", "where": "", "sha256": "0" * 64,
        "source_format": "vllm_bench", "source_version": "", "date": "2026-11-29",
        "matched_by": "a test", "candidate_id": f"c{number}", "load": "level 1",
        "num_requests": 100, "basis": basis_of("vllm", "0.33", place.gpu), "place": place,
        "measured": {k: v * factor for k, v in predicted.items()}, "predicted": predicted,
    }  # fmt: skip
    return Point(**(facts | changes))


def test_one_point_is_shrunk_to_its_share_of_the_variance() -> None:
    """With prior variance b and noise v the posterior of one error e is e b/(b + v)."""
    fit = fit_kind("tpot", [CENTRE], np.array([0.3]))
    prior, noise = BIAS["tpot"] ** 2, NOISE["tpot"] ** 2
    assert fit.at(CENTRE) == pytest.approx(0.3 * prior / (prior + noise))


def test_many_equal_points_are_believed() -> None:
    fit = fit_kind("tpot", [CENTRE] * 200, np.full(200, 0.3))
    prior, noise = BIAS["tpot"] ** 2, NOISE["tpot"] ** 2 / 200
    assert fit.at(CENTRE) == pytest.approx(0.3 * prior / (prior + noise))


def test_no_point_corrects_nothing() -> None:
    assert Calibration(()).correction(CENTRE) == Correction()


def test_what_carries_over_to_others_is_what_they_share() -> None:
    fit = fit_kind("tpot", [CENTRE], np.array([0.3]))
    whole = fit.at(CENTRE)
    for changed, levels in (
        ({"model": "m", "gpu": L40S, "release": "0.19"}, ()),
        ({"model": "m", "gpu": L40S}, ("release",)),
        ({"model": "m"}, ("release", "gpu")),
        ({"gpu": L40S}, ("release", "model")),
        ({"weight_dtype": "fp8"}, ("release", "gpu", "model")),
    ):
        share = sum(SHARES[level] for level in levels)
        assert fit.at(replace(CENTRE, **changed)) == pytest.approx(whole * share), changed


def test_a_slope_is_learned_where_loads_differ() -> None:
    """A pair slow at large batches only: the correction must follow, not average."""
    places = [replace(CENTRE, batch=b) for b in (2, 8, 32, 128, 256) for _ in range(4)]
    errors = np.array([0.1 * math.log(p.batch / 32) for p in places])
    fit = fit_kind("tpot", places, errors)
    high, low = (fit.at(replace(CENTRE, batch=b)) for b in (256.0, 2.0))
    assert high == pytest.approx(0.1 * math.log(8), abs=0.05)
    assert low == pytest.approx(-0.1 * math.log(16), abs=0.05)


def test_a_point_left_out_is_what_the_others_say() -> None:
    rng = np.random.default_rng(3)
    sizes = zip(rng.uniform(1, 200, 8), rng.integers(1, 8, 8), strict=True)
    places = [replace(CENTRE, batch=float(b), tp=int(t)) for b, t in sizes]
    errors = rng.normal(0.1, 0.1, 8)
    whole = fit_kind("ttft", places, errors)
    for i in range(8):
        rest = [j for j in range(8) if j != i]
        alone = fit_kind("ttft", [places[j] for j in rest], errors[rest], whole.centres)
        assert whole.left_out[i] == pytest.approx(alone.at(places[i]), abs=1e-9)


def test_a_constant_delay_is_the_host_term() -> None:
    """40 ms on every TTFT: large for short ones, nothing for long ones."""
    predicted = np.array([0.02, 0.03, 0.05, 0.5, 2.0, 5.0] * 3)
    places = [CENTRE] * len(predicted)
    assert host_term(places, predicted + 0.04, predicted) == pytest.approx(0.04, abs=0.008)
    assert host_term(places, predicted, predicted) == pytest.approx(0.0, abs=0.002)


def test_conformal_takes_the_rank_of_the_theorem() -> None:
    scores = np.arange(1.0, 20.0)  # 19: the ceil(20 x 0.9) = 18th smallest
    assert conformal(scores, 0.9) == (0.0, 18.0), "all scores above 0: the low end is the middle"
    assert conformal(-scores, 0.9) == (18.0, 0.0)
    assert conformal(np.arange(1.0, 11.0), 0.9) == (0.0, 10.0)
    assert conformal(np.arange(9.0), 0.9) is None, "fewer than ten"
    assert conformal(np.arange(12.0), 0.95) is None, "12 scores bear no 95 % bound"


def test_conformal_covers_nine_of_ten() -> None:
    rng = np.random.default_rng(5)
    held = []
    for _ in range(2000):
        draws = rng.standard_t(4, 16)
        found = conformal(draws[:15], 0.9)
        assert found is not None
        held.append(draws[15] <= found[1])
    assert 0.88 <= np.mean(held) <= 0.97


def test_ten_local_points_replace_the_default() -> None:
    rng = np.random.default_rng(7)
    factors = np.exp(rng.normal(0.1, 0.02, 10))
    learned = Calibration(tuple(point(i, f) for i, f in enumerate(factors)))
    default = default_error("interpolated", 0.9)
    known = learned.error_of(CENTRE, "interpolated", 0.9, 0.5)
    for kind in ("tpot", "ttft", "tpot_tail", "ttft_tail"):
        assert known.basis[kind] == "10 local points"
    assert 0 < known.high["tpot"] < 0.06 < default.high["tpot"]
    elsewhere = replace(CENTRE, band="saturated")
    unknown = learned.error_of(elsewhere, "interpolated", 0.9, 0.5)
    assert unknown.basis == {}
    assert unknown.at("high", "tpot", "p99") == default.at("high", "tpot", "p99")
    other = replace(CENTRE, weight_dtype="fp8")
    assert learned.error_of(other, "interpolated", 0.9, 0.5).basis == {}, "of another pair"


def test_nine_points_leave_the_default() -> None:
    learned = Calibration(tuple(point(i) for i in range(9)))
    known = learned.error_of(CENTRE, "roofline", 0.9, 0.5)
    assert known.basis == {}
    assert known.high["tpot"] == default_error("roofline", 0.9).high["tpot"]


def test_a_contradiction_is_named() -> None:
    same = {"candidate_id": "c", "load": "level 1"}
    close = [point(0, 1.0, **same), point(1, 1.2, **same)]
    assert contradiction(close) is None, "reruns differ by that"
    found = contradiction([*close, point(2, 1.5, **same)])
    assert found is not None
    assert "b0.json and b2.json" in found.reason
    assert contradiction([point(0, 1.0), point(1, 9.0)]) is None, "two candidates"


def test_a_file_holds_points_and_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"schema_version": 1, "start_up": []}), encoding="utf-8")
    added = [point(i, 1.1 + i / 100) for i in range(3)]
    add_points(path, added[:2])
    add_points(path, added[1:])
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["start_up"] == [], "what else is there stays"
    (row,) = document["serving"]["corrections"]
    assert (row["num_points"], row["dates"]) == (3, ["2026-11-29"])
    learned = read_calibration(path)
    assert [p.id for p in learned.points] == [p.id for p in added]
    direct = Calibration(tuple(added)).correction(CENTRE)
    assert learned.correction(CENTRE) == direct
    before = path.read_bytes()
    add_points(path, added)
    assert path.read_bytes() == before, "reading a result again changes nothing"


def test_points_expire_with_what_they_rest_on(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    add_points(path, [point(0), point(1, basis="another profile")])
    learned = read_calibration(path)
    assert (len(learned.points), learned.expired) == (1, 1)


@pytest.mark.parametrize(
    ("where", "value", "words"),
    [
        (("place", "band"), "high", "band"),
        (("place", "batch"), -1.0, "batch"),
        (("place", "tp"), "2", "tp"),
        (("measured", "tpot"), 0, "tpot"),
        (("measured", "speed"), 1.0, "speed"),
        (("id",), 3, "id"),
    ],
)
def test_a_damaged_point_is_named(
    tmp_path: Path, where: tuple[str, ...], value: Any, words: str
) -> None:
    path = tmp_path / "c.json"
    add_points(path, [point(0)])
    document = json.loads(path.read_text(encoding="utf-8"))
    target = document["serving"]["points"][0]
    for key in where[:-1]:
        target = target[key]
    target[where[-1]] = value
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ResultError, match=words) as caught:
        read_calibration(path)
    assert "points[0]" in str(caught.value)


def test_points_that_contradict_the_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    add_points(path, [point(0, 1.0, candidate_id="c")])
    before = path.read_bytes()
    with pytest.raises(ResultError, match="disagree"):
        add_points(path, [point(1, 2.0, candidate_id="c")])
    assert path.read_bytes() == before
    with pytest.raises(ResultError, match="disagree"):
        merge_points(path, [point(1, 2.0, candidate_id="c")])


@pytest.fixture
def replayed() -> Any:
    """Two open-loop requests, made by hand."""
    from sieve.arrays import Requests, SimResult
    from sieve.sim._kernels.clock import GAP_BINS

    requests = Requests(
        np.array([0.0, 1.0]), np.array([100, 300]), np.array([11, 21]),
        front_end_s=np.array([0.1, 0.1]),
    )  # fmt: skip
    gaps = np.zeros(GAP_BINS, np.int64)
    gaps[1000] = 30
    result = SimResult(
        status="", arrival_s=requests.arrival_s, scheduled_s=np.array([0.0, 1.0]),
        first_token_s=np.array([0.2, 1.4]), finish_s=np.array([1.2, 3.4]),
        num_preemptions=np.zeros(2, np.int64), cached_tokens=np.zeros(2, np.int64), num_steps=20,
        num_request_steps=30, component_s=np.ones(5), peak_blocks=1, peak_batch=2, peak_tokens=9,
        peak_running=2, short_of_blocks=False, makespan_s=3.4, gaps=gaps, samples=np.zeros((0, 4)),
    )  # fmt: skip
    return requests, result


def test_a_corrected_replay(replayed: Any) -> None:
    from sieve.sim.metrics import per_request

    requests, result = replayed
    fixed = correct(requests, result, Correction(ttft=math.log(2), tpot=math.log(1.5), host_s=0.02))
    before, after = per_request(requests, result), per_request(requests, fixed)
    assert after["ttft"] == pytest.approx((before["ttft"] + 0.02) * 2)
    assert after["tpot"] == pytest.approx(before["tpot"] * 1.5)
    # The second is sent at 1 s, has its first token 1.04 - 0.1 s later, ends 2 x 1.5 s after that.
    assert fixed.makespan_s == pytest.approx(1.0 + 0.94 + 3.0)
    assert fixed.gaps.sum() == 30
    assert int(fixed.gaps.argmax()) == 1000 + round(math.log(1.5) / math.log(1.005))


def test_a_correction_of_nothing_changes_nothing(replayed: Any) -> None:
    requests, result = replayed
    fixed = correct(requests, result, Correction())
    assert fixed.finish_s == pytest.approx(result.finish_s)
    assert fixed.makespan_s == pytest.approx(result.makespan_s)
    assert (fixed.gaps == result.gaps).all()


def test_a_correction_can_be_taken_back() -> None:
    row: Mapping[str, Any] = {
        "ttft_p50_s": (0.1 + 0.02) * math.exp(0.3), "tpot_p99_s": 0.03 * math.exp(0.1),
        "correction_ttft": 0.3, "correction_tpot": 0.1, "correction_host_s": 0.02,
    }  # fmt: skip
    raw = uncorrected(row)
    assert raw["ttft_p50"] == pytest.approx(0.1)
    assert raw["tpot_p99"] == pytest.approx(0.03)


def test_the_load_of_a_replay(replayed: Any) -> None:
    requests, result = replayed
    load = load_of(requests, result)
    assert load == {"batch": 1.5, "input_tokens": 200.0, "output_tokens": 16.0, "band": "low"}
    waits = replace(result, scheduled_s=np.array([0.15, 1.3]))
    assert load_of(requests, waits)["band"] == "saturated", "0.45 s of 3.6 s are spent waiting"
    assert load_of(requests, replace(result, status="request_exceeds_cache")) is None

"""What calibration is worth, as the page `reports/validation/calibration.md`.

    SIEVE_DATA=FOLDER python tests/accuracy/calibration_study.py [--cache FOLDER] [--out FILE]

First on measured runs (development rows): errors and coverage of a row when other rows of its
(GPU, model, precision) are known. Then on invented hardware: the cases and hidden biases of
`ranking_study.py`, with benchmark results of the "hardware" fed back. With `--cache` finished cases
and replays are kept, and a second call goes on from there.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import numpy as np
import ranking_study as invented

from sieve.api import prepare
from sieve.arrays import StepTable
from sieve.calibration.apply import load_of
from sieve.calibration.points import Point, from_entry, to_entry
from sieve.calibration.serving import Calibration
from sieve.context import RunContext
from sieve.frames import bound_column
from sieve.matching import match_table
from sieve.parallel import LocalExecutor
from sieve.perf.cache import FAMILY
from sieve.perf.constants import document, step_constants
from sieve.pipeline import run_stages
from sieve.ranking.objective import indifference
from sieve.ranking.verdicts import limits_of
from sieve.sim.metrics import metrics
from sieve.sim.replay import simulate
from sieve.spec import load_spec
from sieve.verify.measured_replay import Replays
from stages import s5_simulate, s6_rank

OUT: Final = Path(__file__).parents[2] / "reports" / "validation" / "calibration.md"
TABLES: Final = ("aiconfigurator_silicon.csv", "gpustack_perflab.csv", "dstack_405b.csv",
                 "inferencex_token_position.csv")  # fmt: skip
SIZES: Final = (0, 1, 3, 5, 10)
DRAWS: Final = 3
LEAST: Final = 4
"""Rows of a pair from which on it is looked at."""
NUM_CASES: Final = 56
FRESH: Final = 3000
BENCH: Final = 600
"""Requests of one benchmark of the invented hardware."""
RIG: Final = {"tpot": 0.05, "ttft": 0.10}
"""Log deviation of a benchmark on top of its traffic."""
METRICS: Final = ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s")


# Measured rows


class LeftOut(Replays):
    """Replays with constants that were fitted without the model on the GPU they are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self._folds: dict[str, Replays] = {}

    def predict(self, setup: Any) -> Any:
        """Return the prediction of a setup that the constants have not seen."""
        key = f"{setup.model.name.removesuffix('-FP8')}, {setup.gpu.name}"
        if key not in self._folds:
            constants = step_constants().changed(document()["folds"][key])
            self._folds[key] = Replays(constants)
        return self._folds[key].predict(setup)


def real_points(folder: Path, cache: Path | None) -> list[Point]:
    """Return the points of all eligible rows, replayed once."""
    kept = None if cache is None else cache / "points.json"
    if kept is not None and kept.exists():
        return [from_entry(e, "cache") for e in json.loads(kept.read_text(encoding="utf-8"))]
    replays, points = LeftOut(), []
    for name in TABLES:
        points += match_table(folder / "measured" / name, replays, eligible_only=True).points
    if kept is not None:
        kept.write_text(json.dumps([to_entry(p) for p in points]), encoding="utf-8")
    return points


def corrected(calibration: Calibration, point: Point, kind: str) -> float | None:
    """Return the log error of the corrected prediction, log(predicted/measured)."""
    metric = point.middle(kind)
    if metric is None:
        return None
    fix = calibration.correction(point.place)
    host, factor = (fix.host_s, fix.ttft) if kind == "ttft" else (0.0, fix.tpot)
    return math.log((point.predicted[metric] + host) / point.measured[metric]) + factor


def real_curve(points: list[Point]) -> dict[str, dict[int, list[float]]]:
    """Return |error| in percent by kind and number of other rows of the pair."""
    pairs = defaultdict(list)
    for point in points:
        pairs[point.place.pair].append(point)
    out: dict[str, dict[int, list[float]]] = {k: defaultdict(list) for k in ("tpot", "ttft")}
    rng = np.random.default_rng(11)
    for rows in pairs.values():
        if len(rows) < max(SIZES) + 1:
            continue
        for i, point in enumerate(rows):
            others = rows[:i] + rows[i + 1 :]
            for n in SIZES:
                for _ in range(DRAWS if n else 1):
                    taken = [others[j] for j in rng.choice(len(others), n, replace=False)]
                    calibration = Calibration(tuple(taken))
                    for kind in out:
                        error = corrected(calibration, point, kind)
                        if error is not None:
                            out[kind][n].append(100 * abs(math.exp(error) - 1))
    return out


def real_coverage(points: list[Point]) -> dict[tuple[str, str], list[tuple[bool, bool, float]]]:
    """Return (low holds, high holds, log width) by kind and basis.

    Known are all other rows of the model family on the GPU.
    """
    out: dict[tuple[str, str], list[tuple[bool, bool, float]]] = defaultdict(list)
    for point in points:
        others = [
            p
            for p in points
            if (p.place.gpu, p.place.family) == (point.place.gpu, point.place.family)
            and p.id != point.id
        ]
        learned = Calibration(tuple(others))
        near = learned.error_of(point.place, "interpolated", 0.9, 0.5)
        far = Calibration(()).error_of(point.place, "interpolated", 0.9, 0.5)
        for kind in ("tpot", "ttft"):
            fixed, raw = (corrected(c, point, kind) for c in (learned, Calibration(())))
            if fixed is None or raw is None:
                continue
            local = kind in near.basis
            for name, error, ends in (
                ("local" if local else "default, corrected", fixed, near),
                ("the same, before: local" if local else "the same, before: default", raw, far),
            ):
                low, high = ends.low[kind], ends.high[kind]
                # The truth lies at exp(-error) times the prediction.
                out[kind, name].append((-error >= -low, -error <= high, low + high))
    return out


# Invented hardware


def benchmarks(
    context: RunContext, rows: list[dict[str, Any]], real: dict[tuple[Any, ...], StepTable],
    outside: float, rng: np.random.Generator,
) -> list[list[Point]]:  # fmt: skip
    """Return, for each (GPU, precision), its benchmark results in the order they are made."""
    pairs: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        pairs[row["gpu"], row["weight_dtype"]].append(row)
    out = []
    for group in pairs.values():
        found = []
        for i in range(max(SIZES)):
            row = group[i % len(group)]
            level = (1.0, 0.5, 1.25, 0.75)[i % 4]
            start = int(rng.integers(0, max(len(context.requests) - BENCH, 1)))
            part = context.requests.take(
                np.arange(start, min(start + BENCH, len(context.requests)))
            )
            part = replace(part, arrival_s=(part.arrival_s - part.arrival_s[0]) / level)
            found.append(_benchmark(context, row, part, real, outside, rng, f"{row}{i}"))
        out.append([p for p in found if p is not None])
    return out


def _benchmark(
    context: RunContext, row: dict[str, Any], part: Any, real: Any, outside: float,
    rng: np.random.Generator, name: str,
) -> Point | None:  # fmt: skip
    family = tuple(row[n] for n in FAMILY)
    settings = s5_simulate.settings_of(row, context)
    limits = context.slos.attainment_limits()
    values, place = [], None
    for table, factor in ((context.tables.get(family), 1.0), (real[family], outside)):
        seen = replace(part, front_end_s=part.front_end_s * factor)
        result = simulate(seen, table, settings, row["replicas"])
        values.append(metrics(seen, result, limits=limits))
        if place is None:
            load = load_of(seen, result)
            if load is None:
                return None
            place = s5_simulate.deployment_of(row, context).place(**load)
    noise = {k: math.exp(rng.normal(0, deviation)) for k, deviation in RIG.items()}
    names = {m.removesuffix("_s"): m for m in METRICS}
    predicted, measured = (
        {short: v[column] * (noise[short[:4]] if side else 1.0) for short, column in names.items()}
        for side, v in enumerate(values)
    )
    if place is None or not all(
        math.isfinite(v) for v in (*predicted.values(), *measured.values())
    ):
        return None
    key = hashlib.sha256(name.encode()).hexdigest()
    return Point(key, "bench.json", name[-1], key, "vllm_bench", "", "", "", row["candidate_id"],
                 name[-1], BENCH, "", place, measured, predicted)  # fmt: skip


def one_case(seed: int) -> dict[str, Any]:
    """Return what a case's ranking claimed against what is true, by points a pair."""
    rng = np.random.default_rng([2027, seed])
    spec = invented.case_spec(rng)
    spec["shortlist"] = {"size": 10}
    spec["traffic"]["synthetic"]["requests"] = int(rng.choice([600, 1200]))
    context, grid = prepare(load_spec(spec), LocalExecutor(1))
    outcome = run_stages(grid.candidates, context, stop_after=4)
    if outcome.ranked.is_empty():
        return {"seed": seed, "sizes": {}}
    spec["traffic"]["synthetic"] |= {"requests": FRESH, "seed": seed + 1}
    fresh = prepare(load_spec(spec), LocalExecutor(1))[0].requests
    fresh = replace(
        fresh, arrival_s=fresh.arrival_s * fresh.rate_per_s / context.requests.rate_per_s
    )
    decode, prefill = (
        {g: invented.skewed(rng, *d) for g in invented.GPUS}
        for d in (invented.DECODE, invented.PREFILL)
    )
    outside = invented.skewed(rng, invented.OUTSIDE, invented.OUTSIDE)
    real, truths = {}, {}
    rows = list(outcome.ranked.iter_rows(named=True))
    for row in rows:
        family = tuple(row[name] for name in FAMILY)
        if family not in real:
            own = invented.skewed(rng, invented.OWN, invented.OWN)
            table = context.tables.get(family)
            real[family] = invented.biased(
                table, decode[row["gpu"]] * own, prefill[row["gpu"]] * own
            )
        seen = replace(fresh, front_end_s=fresh.front_end_s * outside)
        truths[row["candidate_id"]] = invented.true_metrics(row, context, seen, real[family])
    results = benchmarks(context, rows, real, outside, rng)
    sizes = {}
    for n in SIZES:
        taken = tuple(p for found in results for p in found[:n])
        calibration = Calibration(taken).prepared() if n else None
        sizes[n] = _score(outcome.ranked, replace(context, calibration=calibration), truths, spec)
    return {"seed": seed, "sizes": sizes}


def _score(frame: Any, context: RunContext, truths: Any, spec: Any) -> dict[str, Any]:
    ranked = s6_rank.run(s5_simulate.run(frame, context).admitted, context).admitted
    out: dict[str, Any] = {"cover": defaultdict(list), "error": defaultdict(list), "verdicts": [],
                           "local": 0, "num": len(ranked)}  # fmt: skip
    values = []
    for row in ranked.iter_rows(named=True):
        truth = truths[row["candidate_id"]]
        for metric in (*METRICS, "e2e_p99_s", "output_tokens_per_s", "usd_per_mtok"):
            low, high = (row[bound_column(metric, e)] for e in ("low", "high"))
            slack = 1e-9 * truth[metric]
            out["cover"][metric].append(
                [low <= truth[metric] + slack, truth[metric] <= high + slack,
                 (high - low) / max(row[metric], 1e-12)]
            )  # fmt: skip
            out["error"][metric].append(100 * abs(row[metric] / truth[metric] - 1))
        meets = all(bool(lim.holds(truth[lim.column])) for lim in limits_of(context.slos))
        out["verdicts"].append([row["verdict"], meets])
        out["local"] += row.get("basis_tpot") is not None
        values.append(truth[spec["rank"]["objective"]])
    if values:
        peers = (ranked["verdict"] == ranked["verdict"][0]).to_numpy()
        known = np.where(peers, np.array(values), np.inf)
        tied = (ranked["tie_group"] == 1).to_numpy()
        margin = 1 + indifference(spec["rank"]["objective"])
        out["tie"] = [bool(tied[known.argmin()]), bool(known[tied].min() <= known.min() * margin),
                      int(tied.sum()), float(known[0] / known.min() - 1)]  # fmt: skip
    return out


def invented_cases(cache: Path | None) -> list[dict[str, Any]]:
    """Return all cases, from the cache as far as it goes."""
    kept = None if cache is None else cache / "cases.jsonl"
    done = {}
    if kept is not None and kept.exists():
        for line in kept.read_text(encoding="utf-8").splitlines():
            case = json.loads(line)
            done[case["seed"]] = case
    for seed in range(NUM_CASES):
        if seed not in done:
            done[seed] = json.loads(json.dumps(one_case(seed), default=bool))
            if kept is not None:
                with kept.open("a", encoding="utf-8") as handle:
                    handle.write(json.dumps(done[seed]) + "\n")
    return [done[seed] for seed in range(NUM_CASES)]


# The page


def share(values: Any) -> str:
    """Return the share of true entries."""
    return f"{100 * fmean(map(bool, values)):.0f} %" if len(values) else "-"


def tenth(values: list[float]) -> float:
    """Return the 90th percentile."""
    return float(np.percentile(values, 90))


def real_part(points: list[Point]) -> list[str]:
    """Return the part on measured rows."""
    curve, cover = real_curve(points), real_coverage(points)
    lines = [
        "## Measured runs", "",
        f"{len(points)} eligible development rows that can be replayed, each predicted with "
        "step-time constants fitted without its model on its GPU (the middles of their priors have "
        "seen all). Of each row of a (GPU, model, precision) with more than ten, other rows of "
        f"the pair are taken at random ({DRAWS} draws) as calibration; nothing else is known.", "",
        "| points of the pair | TPOT median | mean | 90th percentile | TTFT median | mean | 90th |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for n in SIZES:
        cells = [
            f"{f(curve[k][n]):.1f} %" for k in ("tpot", "ttft") for f in (median, fmean, tenth)
        ]
        lines.append(f"| {n} | {' | '.join(cells)} |")
    lines += [
        "", "Intervals at one-sided 90 %, all other rows of the model family on the GPU known. "
        "`local`: the regime cell has ten scores, so ends are split-conformal. `before`: the same "
        "rows without any calibration. Each end should hold in 90 %, both in 80 %.", "",
        "| latency | interval | rows | low | high | both | median width (high over low) |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for kind, name in sorted(cover):
        found = cover[kind, name]
        low, high, width = zip(*found, strict=True)
        both = [a and b for a, b in zip(low, high, strict=True)]
        lines.append(
            f"| {kind.upper()} | {name} | {len(found)} | {share(low)} | {share(high)} | "
            f"{share(both)} | {math.exp(median(width)):.2f} |"
        )
    return lines


def invented_part(cases: list[dict[str, Any]]) -> list[str]:
    """Return the part on invented hardware."""
    d, p = invented.DECODE, invented.PREFILL
    used = [c for c in cases if c["sizes"]]
    lines = [
        "## Invented hardware", "",
        f"{len(used)} of {NUM_CASES} cases (the rest has nothing to rank): models, GPUs, traffic "
        "and hidden biases as in [ranking.md](ranking.md): log deviations "
        f"{d[0]:g} and {d[1]:g} of decode steps and {p[0]:g} and {p[1]:g} of steps with prompts by "
        f"GPU, {invented.OWN:g} by family, {invented.OUTSIDE:g} of the time outside the engine. "
        "Every benchmark "
        f"is a replay of {BENCH} requests at 0.5 to 1.25 times the load on the biased step times, "
        f"with a rig spread of {RIG['tpot']:g} (TPOT) and {RIG['ttft']:g} (TTFT). `points`: for "
        f"each (GPU, precision) of the ranking. Truth: {FRESH:,} fresh requests.", "",
        "| points | error of TPOT p50 | TPOT p99 | TTFT p50 | TTFT p99 | local TPOT intervals |",
        "|---|---|---|---|---|---|",
    ]  # fmt: skip
    order = ("tpot_p50_s", "tpot_p99_s", "ttft_p50_s", "ttft_p99_s")
    pick = {n: [c["sizes"].get(str(n)) or c["sizes"][n] for c in used] for n in SIZES}
    for n in SIZES:
        cells = []
        for metric in order:
            errors = [e for s in pick[n] for e in s["error"].get(metric, [])]
            cells.append(f"{median(errors):.1f} % ({fmean(errors):.1f})")
        total = sum(s["num"] for s in pick[n])
        local = sum(s["local"] for s in pick[n])
        lines.append(f"| {n} | {' | '.join(cells)} | {100 * local / total:.0f} % |")
    lines += ["", "Median, and mean in brackets, over all ranked candidates.", "",
              "| points | metric | low | high | both | median width |",
              "|---|---|---|---|---|---|"]  # fmt: skip
    for n in SIZES:
        for metric in (*order, "e2e_p99_s", "output_tokens_per_s", "usd_per_mtok"):
            cells = [c for s in pick[n] for c in s["cover"].get(metric, [])]
            low, high, width = zip(*cells, strict=True)
            both = [a and b for a, b in zip(low, high, strict=True)]
            lines.append(f"| {n} | `{metric}` | {share(low)} | {share(high)} | {share(both)} | "
                         f"{100 * median(width):.0f} % |")  # fmt: skip
    lines += [
        "", "| points | `clears` | of them break an objective (goal: 5 % at most) | `point_only` "
        "that hold | `misses` that would hold | first tie group holds the best (goal: 95 %) | "
        "near it | mean group | mean regret |",
        "|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for n in SIZES:
        by = defaultdict(list)
        for s in pick[n]:
            for verdict, meets in s["verdicts"]:
                by[verdict].append(meets)
        ties = [s["tie"] for s in pick[n] if "tie" in s]
        held, near, size, regret = zip(*ties, strict=True)
        broken = 100 * (1 - fmean(map(bool, by["clears"])))
        lines.append(
            f"| {n} | {len(by['clears'])} | {broken:.1f} % | {share(by['point_only'])} | "
            f"{share(by['misses'])} | {share(held)} | {share(near)} | {fmean(size):.1f} | "
            f"{100 * fmean(regret):.1f} % |"
        )
    return lines


REMARK: Final = """\
On measured runs one point of a pair helps the worst predictions and not the median: constants that
were fitted to many public runs leave errors near the spread of reruns, and a correction learned at
one load is carried to others. On invented hardware the bias is the pair's and one point finds most
of it. After three points the uncalibrated defaults are too wide for TPOT and TTFT p50: they stay
until a regime has ten scores. What stays in p99s, throughput and cost is mostly the noise of a
short trace, which calibration does not touch. Ends are at least the corrected prediction itself,
so they hold somewhat more often than they say."""


def main() -> None:
    """Run both parts and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--only", choices=("real", "invented"))
    options = parser.parse_args()
    if options.cache is not None:
        options.cache.mkdir(parents=True, exist_ok=True)
    lines = [
        "# What calibration is worth", "",
        "`tests/accuracy/calibration_study.py` writes this page.", "",
    ]  # fmt: skip
    if options.only != "invented":
        lines += [*real_part(real_points(Path(os.environ["SIEVE_DATA"]), options.cache)), ""]
    if options.only != "real":
        lines += invented_part(invented_cases(options.cache))
    if REMARK:
        lines += ["", REMARK]
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

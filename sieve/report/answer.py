"""What a run answers, in sentences of plain text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sieve.report.format import (
    UNKNOWN,
    count,
    deployment,
    engine_limits,
    is_reason,
    limit_text,
    metric_name,
    metric_value,
    money,
    number,
    quantity,
    reason_sentence,
    seconds,
    share,
)

NUM_STAGES: Final = 7
_NOBODY: Final = {"no_fit": "nothing fits", "no_slo": "nothing keeps up"}
YARDSTICKS: Final = {
    "fewest_gpus": "fewest GPUs",
    "best_per_gpu": "most output per GPU",
    "cheapest": "cheapest per token",
}

STAGE_NAMES: Final = {
    "validity": "engine rules",
    "memory_fit": "memory",
    "batch_sizing": "batch size",
    "shortlist": "shortlist",
    "simulate": "simulation",
    "rank": "ranking",
    "confirm": "start scripts",
}


def leader(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the first row of the ranking, or None where there is none."""
    ranking = result.get("ranking") or []
    return dict(ranking[0]) if ranking else None


def tied_with_leader(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the ranking rows of the leader's tie group, the leader first."""
    ranking = result.get("ranking") or []
    return [dict(r) for r in ranking if r.get("tie_group") == ranking[0].get("tie_group")]


def confidence_text(result: Mapping[str, Any]) -> str:
    """Return `90 % confidence`, or `the chosen confidence` where a result does not say."""
    rank = (result.get("spec") or {}).get("rank") or {}
    value = number(rank.get("confidence"))
    return "the chosen confidence" if value is None else f"{share(value)} confidence"


def answer_sentence(result: Mapping[str, Any]) -> str:
    """Return the answer of a run as one sentence with its confidence."""
    status = (result.get("answer") or {}).get("status")
    first = leader(result)
    sure = confidence_text(result)
    if status is None:
        return _unfinished(result)
    if status == "no_fit":
        return f"No candidate fits. {_main_reason(result)}".rstrip()
    if status == "answer" and first is not None:
        return f"{deployment(first)} clears every objective at {sure}{_price(first)}{_ties(result)}"
    if status == "weak_evidence" and first is not None:
        return (
            f"No candidate clears every objective at {sure}; at the middle of its intervals "
            f"{deployment(first)} meets them all{_price(first)}{_ties(result)}"
        )
    return _nobody(result)


def settle_sentence(result: Mapping[str, Any]) -> str | None:
    """Return the one benchmark that separates the two leaders, in words, or None."""
    settle = (result.get("answer") or {}).get("settle")
    if not settle:
        return None
    level = number(settle.get("level"))
    load = "unknown" if level is None else f"{level:g}"
    ids = [str(i) for i in settle.get("candidate_ids") or []]
    metric = str(settle.get("metric"))
    text = (
        f"To separate the leaders, benchmark {' and '.join(ids)} with "
        f"{count(settle.get('num_requests'))} requests at load {load} "
        f"and compare {metric_name(metric)}"
    )
    chance, hours = number(settle.get("chance")), number(settle.get("gpu_hours"))
    if chance is not None and hours is not None:
        text += f" ({seconds(settle.get('duration_s'))} each, {hours:.2g} GPU-hours; a chance "
        text += f"of {share(chance)} to tell them apart where reruns agree)"
    if number(settle.get("decides_at")) is None:
        return f"{text}."
    return f"{text}; the two predictions part at {metric_value(metric, settle['decides_at'])}."


def follows_sentence(result: Mapping[str, Any]) -> str | None:
    """Return whom the sections on the leader are about where nobody meets every objective."""
    first = leader(result)
    if first is None or first.get("verdict") != "misses":
        return None
    objective = ((result.get("spec") or {}).get("rank") or {}).get("objective")
    by = "" if objective is None else f", best by {metric_name(str(objective))}"
    return (
        f"The leader below is the first of the ranking{by} although it misses objectives: "
        f"{deployment(first)}, {engine_limits(first)}."
    )


def yardsticks(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (yardsticks, deployment in words, candidate id) of each winner that exists."""
    rows = {r["candidate_id"]: r for r in result.get("ranking") or []}
    won: dict[str, list[str]] = {}
    for key, name in YARDSTICKS.items():
        candidate = (result.get("answer") or {}).get(key)
        if candidate is not None:
            won.setdefault(str(candidate), []).append(name)
    out = []
    for candidate, names in won.items():
        row = rows.get(candidate)
        words = f"{deployment(row)}, {engine_limits(row)}" if row else ""
        out.append((", ".join(names), words, candidate))
    return out


def model_rows(result: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the first of each model, a row a model, as texts; [] of a run over one model."""
    ranking = result.get("ranking") or []
    rows = []
    for model in result.get("models") or []:
        first = next((r for r in ranking if r.get("model") == model.get("name")), None)
        usd = (first or {}).get("usd_per_mtok") or {}
        status = str(model.get("status"))
        rows.append(
            {
                "model": str(model.get("name")),
                "rank": UNKNOWN if first is None else str(first.get("rank")),
                "best deployment": _NOBODY.get(status, "not ranked")
                if first is None
                else deployment({**first, "model": None}),
                "verdict": UNKNOWN if first is None else str(first.get("verdict")),
                "USD/Mtok": money(usd.get("mid")).removesuffix(" USD"),
            }
        )
    return rows


def miss_words(miss: Mapping[str, Any]) -> dict[str, str]:
    """Return what a near miss misses, its two numbers and by how much, as texts."""
    what, unit = str(miss.get("misses")), str(miss.get("unit") or "")
    observed, limit = number(miss.get("observed")), number(miss.get("limit"))
    what = reason_sentence(what) if is_reason(what) else what
    if miss.get("at") == "pessimistic_end":
        what = f"{what} at the pessimistic end"
    return {
        "what": what,
        "observed": quantity(observed, unit),
        "limit": limit_text(limit, unit),
        "by": _gap(observed, limit),
    }


def fix_words(miss: Mapping[str, Any]) -> list[str]:
    """Return what would fix a near miss, one sentence a change; each was simulated."""
    out = []
    for fix in miss.get("fixes") or []:
        name = str(fix.get("change"))
        if fix.get("num_gpus") is None:
            out.append(f"none of {count(miss.get('num_tried'))} small changes can serve this load")
            continue
        noun = "GPU" if fix["num_gpus"] == 1 else "GPUs"
        size = f"{count(fix['num_gpus'])} {noun}"
        if fix.get("exceeds_fleet"):
            size += ", more than the fleet has"
        unit = str(fix.get("unit") or "")
        observed, limit = number(fix.get("observed")), number(fix.get("limit"))
        tight = f"{fix.get('limit_text')}: {quantity(observed, unit)}"
        text = f"{name} ({size})"
        if fix.get("verdict") == "clears":
            out.append(f"{text} clears every objective; tightest {tight}")
        elif fix.get("verdict") == "point_only" and miss.get("at") != "pessimistic_end":
            out.append(f"{text} meets every objective in the middle; tightest {tight}")
        else:
            tried = f"none of {count(miss.get('num_tried'))} small changes is enough; {text}"
            by = "" if fix.get("verdict") == "point_only" else f", {_gap(observed, limit)}"
            out.append(f"{tried} comes nearest with {tight}{by}")
    return out


def _gap(observed: float | None, limit: float | None) -> str:
    """Return by how much a value is off its limit, as a share of the limit."""
    if observed is None or not limit:
        return "unknown"
    off = observed / limit - 1
    return f"{share(abs(off))} {'above' if off > 0 else 'below'}"


def _price(row: Mapping[str, Any]) -> str:
    usd = row.get("usd_per_mtok") or {}
    if number(usd.get("mid")) is None:
        return ""
    text = f" for {money(usd['mid'])} per million output tokens"
    low, high = usd.get("low"), usd.get("high")
    if number(low) is None or number(high) is None:
        return text
    return f"{text} ({money(low).removesuffix(' USD')} to {money(high).removesuffix(' USD')})"


def _ties(result: Mapping[str, Any]) -> str:
    others = len((result.get("answer") or {}).get("tie_group") or []) - 1
    if others < 1:
        return "."
    noun = "candidate" if others == 1 else "candidates"
    return f"; {count(others)} more {noun} cannot be told apart from it."


def _nobody(result: Mapping[str, Any]) -> str:
    misses = result.get("nearest_misses") or []
    text = "No candidate meets every objective"
    if not misses:
        return f"{text}."
    near = miss_words(misses[0])
    rows = {r["candidate_id"]: r for r in result.get("ranking") or []}
    row = rows.get(misses[0].get("candidate_id"))
    name = deployment(row) if row else str(misses[0].get("candidate_id"))
    what = near["what"].removesuffix(".")
    if is_reason(str(misses[0].get("misses"))):
        return f"{text}; {name} comes nearest ({near['observed']}, {near['by']}). {what}."
    by = f"({near['observed']}, {near['by']})"
    return f"{text}; {name} comes nearest and misses most on {what} {by}."


def _main_reason(result: Mapping[str, Any]) -> str:
    reasons: dict[str, int] = {}
    for stage in result.get("stages") or []:
        # The last stage that rejects anything threw out what came nearest.
        reasons = {r: int(n) for r, n in (stage.get("reasons") or {}).items()} or reasons
    if not reasons:
        return ""
    # Shapes that exceed the fleet are part of every grid and say little about the model.
    telling = {r: n for r, n in reasons.items() if r not in {"node", "gpu_budget"}} or reasons
    most = max(telling, key=lambda r: (telling[r], r))
    return f"Most often ({count(reasons[most])} candidates): {reason_sentence(most)}"


def _unfinished(result: Mapping[str, Any]) -> str:
    stages = result.get("stages") or []
    if not stages:
        return "No answer: no stage has run."
    last = stages[-1]
    name = STAGE_NAMES.get(str(last.get("name")), str(last.get("name")))
    return (
        f"No answer yet: the run stopped after stage {last.get('number')} ({name}) of "
        f"{NUM_STAGES}, with {count(last.get('num_admitted'))} of "
        f"{count(stages[0].get('num_in'))} candidates still in."
    )


def audit_rows(found: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the audit's table as texts, a row a size of shortlist."""
    words = {None: UNKNOWN, 0.0: "no", 1.0: "yes"}
    return [
        {
            "size": f"{row['size']}" + ("*" if row["size"] == found["size"] else ""),
            "best found": words[row["recall_best"]],
            "of the top 5": UNKNOWN if row["recall_top5"] is None else share(row["recall_top5"]),
            "regret": "other verdict" if row["regret"] is None else f"{row['regret']:.2%}",
        }
        for row in found["by_size"]
    ]

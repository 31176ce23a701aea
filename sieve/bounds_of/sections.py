"""The parts of the document: decode with its gates, prefill, speculative decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sieve.bounds_of.facts import model_inputs, weight_bytes_of
from sieve.catalog.architecture import ModelArchitecture
from sieve.errors import InvalidInput
from sieve.formulas.bounds import BOUNDS
from sieve.formulas.bounds.inputs import at_least
from sieve.units import gfloor


@dataclass(frozen=True)
class Speculation:
    """A sequential draft.

    Attributes:
        tokens: drafted tokens of a pass (gamma).
        acceptance: probability that a drafted token is accepted once all before it are (alpha).
        draft: the drafting model; None costs nothing, as with n-grams.
    """

    tokens: int
    acceptance: float = 1.0
    draft: ModelArchitecture | None = None


@dataclass(frozen=True)
class Case:
    """Everything the formulas ask for, in bytes, seconds and tokens."""

    hardware: dict[str, float]  # C, R, O
    model: dict[str, Any]
    context: dict[str, float]  # L_alloc, L_read
    floor: float
    rates: dict[str, float]  # F_linear, F_attention where known
    costs_are_limits: bool
    expected: bool

    @property
    def kind(self) -> str:
        """Kind of what depends on the experts that a batch visits."""
        return "estimate" if self.expected else self.limit_kind

    @property
    def limit_kind(self) -> str:
        """Kind of what does not."""
        return "bound" if self.costs_are_limits else "estimate"

    def ask(self, function: str, **inputs: Any) -> dict[str, Any]:
        """Return the answer of a bounds function about this model on this hardware."""
        given = {**self.hardware, **self.context, **self.rates, "model": self.model, **inputs}
        return BOUNDS[f"bounds.{function}"](given)


def decode_section(case: Case, batches: Sequence[int]) -> dict[str, Any]:
    """Return the gates in order and the decode ceilings."""
    found = case.ask("decode", r_star=case.floor)
    state = found["state"]
    taken = case.hardware["C"] - found["margin"]
    session = _cache_bytes(case.model["kv_alloc"], case.context["L_alloc"])
    stops = ("does_not_fit", "resident_only", "no_floor")
    last = stops.index(state) if state in stops else len(stops)
    gates = [
        _gate("resident", "weights and overhead", taken, case.hardware["C"], "bytes"),
        _gate("session", "one session beside them", session, found["margin"], "bytes"),
        _gate("floor", "every session", case.floor, found.get("single"), "tokens/s"),
    ]
    for i, gate in enumerate(gates):
        gate["passed"] = None if i > last else i < last
    rows = case.ask("forced", batches=list(batches))["rows"]
    for row in rows:
        row["fits"] = row["batch"] <= found.get("b_mem", 0)
        row["meets_floor"] = at_least(row["per_session"], case.floor)
    limit, kind = case.limit_kind, case.kind
    return {
        "state": state,
        "gates": gates,
        "margin_bytes": found["margin"],
        "session_bytes": session,
        "b_mem": found.get("b_mem"),
        "b_rate": found.get("b_rate"),
        "b_usable": found.get("b_usable"),
        "single_tokens_per_s": found.get("single"),
        "memory_power_tokens_per_s": found.get("memory_power"),
        "b_star": found.get("b_star"),
        "aggregate_tokens_per_s": found.get("aggregate"),
        "per_session_tokens_per_s": found.get("per_session"),
        "batches": [{_NAMES.get(key, key): value for key, value in row.items()} for row in rows],
        "kinds": {
            "margin_bytes": "exact", "session_bytes": "exact", "b_mem": "exact",
            "b_rate": limit, "b_usable": limit, "single_tokens_per_s": limit,
            "memory_power_tokens_per_s": limit, "b_star": kind, "aggregate_tokens_per_s": kind,
            "per_session_tokens_per_s": kind, "batches": kind,
        },
    }  # fmt: skip


_NAMES: Final = {
    "aggregate": "aggregate_tokens_per_s", "per_session": "per_session_tokens_per_s",
    "rate": "rate_tokens_per_s", "mem_rate": "memory_tokens_per_s",
    "comp_rate": "compute_tokens_per_s", "t": "time_s", "t_mem": "memory_s", "t_comp": "compute_s",
    "Q": "traffic_bytes", "A_lin": "linear_flop", "A_att": "attention_flop",
    "n_chunks": "num_chunks",
}  # fmt: skip


def _cache_bytes(layout: dict[str, Any], length: float) -> float:
    return float(BOUNDS["bounds.kv_cache"]({"kv": layout, "L": [length]})["bytes"][0])


def _gate(name: str, of: str, needs: float, has: float | None, unit: str) -> dict[str, Any]:
    return {"gate": name, "of": of, "needs": needs, "has": has, "unit": unit, "passed": None}


def prefill_section(
    case: Case, prompt: int, chunk: int | None, ttft_s: float | None
) -> dict[str, Any]:  # fmt: skip
    """Return the prefill ceilings of one prompt and of the best batch."""
    limit, kind = case.limit_kind, case.kind
    if prompt > case.context["L_alloc"]:
        raise InvalidInput(
            f"the prompt has {prompt} tokens; it must be at most the reserved context of "
            f"{case.context['L_alloc']:g}"
        )
    found = case.ask("prefill", L=prompt, c=prompt if chunk is None else chunk)
    single = {_NAMES[key]: found.get(key) for key in _NAMES if key in found}
    best = case.ask("prefill_best", L=prompt, **({} if ttft_s is None else {"tau": ttft_s}))
    chain = case.ask("prefill_chain", L=prompt, b=1, F=case.rates.get("F_linear"))
    linear = case.rates.get("F_linear")
    crossover = None if linear is None else case.ask("crossover", F=linear)["S_star"]
    return {
        "prompt_tokens": prompt,
        "limit": found["limit"],
        "one_prompt": single,
        "memory_power_tokens_per_s": chain.get("memory_power"),
        "linear_only_tokens_per_s": chain.get("linear_only"),
        "crossover_tokens": crossover,
        "ttft_s": ttft_s,
        "best": {
            "state": best["state"],
            "batch": best["b"],
            **{_NAMES.get(k, k): best[k] for k in ("rate", "t", "limit") if k in best},
        },
        "kinds": {
            "traffic_bytes": kind, "linear_flop": limit, "attention_flop": limit,
            "num_chunks": "exact", "memory_s": kind, "memory_tokens_per_s": kind,
            "compute_s": limit, "compute_tokens_per_s": limit, "time_s": kind,
            "rate_tokens_per_s": kind, "memory_power_tokens_per_s": limit,
            "linear_only_tokens_per_s": limit, "crossover_tokens": kind, "best": kind,
        },
    }  # fmt: skip


def speculative_section(case: Case, plan: Speculation, batches: Sequence[int]) -> dict[str, Any]:
    """Return the ceilings with a sequential draft, memory and arithmetic side by side."""
    draft: dict[str, float] = {}
    if plan.draft is not None:
        _, e_w = weight_bytes_of(plan.draft, None)
        costs = model_inputs(plan.draft, e_w, 2.0, "floor")
        sweep = BOUNDS["bounds.weight_sweep"]({"weights": costs["weights"], "n": [1]})["bytes"][0]
        draft = {
            "w_draft": sweep,
            "w_draft_resident": plan.draft.params * e_w,
            "k_draft_read": _cache_bytes(costs["kv_read"], case.context["L_read"]),
            "k_draft_alloc": _cache_bytes(costs["kv_alloc"], case.context["L_alloc"]),
        }
    rows = []
    for batch in batches:
        found = case.ask("speculative", b=batch, gamma=plan.tokens, alpha=plan.acceptance, **draft)
        compute = _verification_limit(case, plan.tokens, found["rho"])
        both = [found["aggregate"]] if compute is None else [found["aggregate"], compute]
        rows.append(
            {
                "batch": batch,
                "state": found["state"],
                "memory_tokens_per_s": found["aggregate"],
                "compute_tokens_per_s": compute,
                "aggregate_tokens_per_s": min(both),
                "per_session_tokens_per_s": min(both) / batch,
            }
        )
    sure = plan.acceptance == 1 and (plan.draft is None or plan.draft.is_detailed)
    return {
        "draft": None if plan.draft is None else plan.draft.name,
        "gamma": plan.tokens,
        "alpha": plan.acceptance,
        "rho": found["rho"] if batches else None,
        "b_mem": found["b_mem"] if batches else None,
        "batches": rows,
        "kinds": {"b_mem": "exact", "batches": case.kind if sure else "estimate"},
    }


def _verification_limit(case: Case, gamma: int, rho: float) -> float | None:
    """Return the tokens/s that the arithmetic of verification passes allows, for any batch."""
    if not {"F_linear", "F_attention"} <= case.rates.keys():
        return None
    attention = BOUNDS["bounds.attention_flops"](
        {
            "attention": case.model["attention"],
            "c": gamma + 1,
            "prefix": gfloor(case.context["L_read"]),
        }
    )["flops_per_token"]
    linear = 2 * case.model["p_lin_active"] / case.rates["F_linear"]
    return float(rho / ((gamma + 1) * (linear + attention / case.rates["F_attention"])))

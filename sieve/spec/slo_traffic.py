"""Objectives that a traffic cannot show."""

from __future__ import annotations

from sieve.arrays import IntArray
from sieve.errors import Fault
from sieve.spec.slo import USER_RATE, SloSet

_BETWEEN_TOKENS = ("tpot", "itl", USER_RATE)


def traffic_faults(slos: SloSet, output_tokens: IntArray) -> list[Fault]:
    """Return a fault for every objective on gaps between tokens when every answer is one token.

    Args:
        slos: the objectives.
        output_tokens: (n,) answer lengths.
    """
    if len(output_tokens) == 0 or int(output_tokens.max()) > 1:
        return []
    why = "but every answer of the traffic has one token, so there is no gap between tokens; "
    why += "limit ttft or e2e, or take traffic with longer answers"
    faults = [
        Fault("slo", f"found {slo.text}, {why}")
        for slo in slos.limits
        if slo.metric in _BETWEEN_TOKENS
    ]
    for name, gate in (("attainment", slos.attainment), ("goodput", slos.goodput)):
        if gate and gate[1].tpot_s is not None and gate[1].ttft_s is gate[1].e2e_s is None:
            faults.append(Fault(f"slo.{name}", f"found {gate[1].text} alone, {why}"))
    return faults

"""Objectives that a traffic cannot show."""

from __future__ import annotations

from sieve.arrays import IntArray, Requests
from sieve.errors import Fault
from sieve.spec.slo import USER_RATE, SloSet
from sieve.spec.slo_classes import class_faults

_BETWEEN_TOKENS = ("tpot", "itl", USER_RATE)


def traffic_faults(slos: SloSet, requests: Requests) -> list[Fault]:
    """Return a fault for every objective that the traffic cannot show.

    That is a limit on gaps between tokens when every answer (of its class) is one token, and a
    class without requests.

    Args:
        slos: the objectives.
        requests: the traffic.
    """
    if faults := class_faults(slos.classes, requests):
        return faults
    return [*_gap_faults(slos, requests.output_tokens), *_class_gap_faults(slos, requests)]


def _class_gap_faults(slos: SloSet, requests: Requests) -> list[Fault]:
    faults = []
    for slo in slos.limits:
        if slo.group is not None and slo.metric in _BETWEEN_TOKENS:
            longest = int(requests.output_tokens[slo.group.members(requests)].max())
            if longest == 1 < int(requests.output_tokens.max()):
                faults.append(
                    Fault(
                        f"slo.classes.{slo.group.name}",
                        f"found {slo.text}, but every answer of the class has one token, so there "
                        "is no gap between tokens; limit ttft or e2e",
                    )
                )
    return faults


def _gap_faults(slos: SloSet, output_tokens: IntArray) -> list[Fault]:
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

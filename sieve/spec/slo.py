"""Service-level objectives: what a user may ask for and how it is written.

Definitions: TTFT is first token minus arrival, queueing included; TPOT is per request
(E2E - TTFT)/(output tokens - 1) and does not exist for one-token answers; ITL pools the gaps
between tokens over all requests; E2E is last token minus arrival; the rate of a user is 1/TPOT of a
request in tokens per second, so `p1` of it is what all but one in a hundred get. A limit may hold
for a class of requests alone (`sieve.spec.slo_classes`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from sieve.errors import Fault
from sieve.spec.slo_classes import RequestClass, parse_class, split_class
from sieve.spec.slo_forms import GATE_METRICS, from_flags, from_sla
from sieve.spec.slo_gates import in_ms, parse_gate, positive

LATENCY_METRICS: Final = ("ttft", "tpot", "itl", "e2e")
USER_RATE: Final = "output_tokens_per_s_per_user"
"""A rate with a statistic over requests."""
_BY_REQUEST: Final = ("ttft", "tpot", "e2e", USER_RATE)
"""Metrics that a class of requests has too; gaps between tokens are counted without a request."""
RATES: Final = {
    "output_tokens_per_s": "tokens/s",
    "output_tokens_per_s_per_gpu": "tokens/s",
    "requests_per_s": "requests/s",
}
"""Rates of the whole run and their units."""
_ALIASES: Final = {
    "time_to_first_token": "ttft",
    "inter_token_latency": "itl",
    "request_latency": "e2e",
    "e2el": "e2e",
    "output_token_throughput": "output_tokens_per_s",
    "output_throughput": "output_tokens_per_s",
    "output_token_throughput_per_user": USER_RATE,
    "request_throughput": "requests_per_s",
}
_STATISTICS: Final = {"avg": "mean", "median": "p50"}
_STATISTIC: Final = r"mean|avg|median|p\d+(?:[._]\d+)?"
_KEY: Final = re.compile(rf"^([a-z0-9_]+?)_({_STATISTIC})(_ms|_s)?$")
_USER_KEY: Final = re.compile(rf"^(output_tokens)_({_STATISTIC})_per_s_per_user$")
_TEXT: Final = re.compile(rf"^\s*([a-z0-9_]+)(?::({_STATISTIC}))?\s*(<=|>=)\s*(.+?)\s*$")
_GATE: Final = re.compile(r"^\s*(attainment|goodput)\(([^()]*)\)\s*>=\s*(.+?)\s*$")
_INNER: Final = re.compile(r"^\s*([a-z0-9_]+)\s*(<=|>=)\s*(.+?)\s*$")


@dataclass(frozen=True)
class Slo:
    """One limit on one metric of the whole run.

    Attributes:
        metric: `ttft`, `tpot`, `itl`, `e2e`, `output_tokens_per_s_per_user` or one of `RATES`.
        statistic: `mean`, `p99` ..., "" for rates of the whole run.
        at_most: True for latencies, False for rates.
        limit: seconds, or tokens or requests per second.
        group: the class of requests that it holds for; None: all.
    """

    metric: str
    statistic: str
    at_most: bool
    limit: float
    group: RequestClass | None = None

    @property
    def series(self) -> str:
        """The metric with its class, such as `ttft` or `ttft@short`."""
        return self.metric if self.group is None else in_class(self.metric, self.group.name)

    @property
    def column(self) -> str:
        """Name of the metric's column, such as `ttft_p99_s` or `ttft_p99_in_short_s`."""
        return latency_column(self.series, self.statistic) if self.statistic else self.metric

    @property
    def text(self) -> str:
        """The limit as a user would write it."""
        before = "" if self.group is None else f"{self.group.text}: "
        if self.at_most:
            return f"{before}{self.metric}:{self.statistic}<={_seconds(self.limit)}"
        statistic = f":{self.statistic}" if self.statistic else ""
        return f"{before}{self.metric}{statistic}>={self.limit:g}"

    @property
    def unit(self) -> str:
        """Unit of the limit."""
        return "s" if self.at_most else RATES.get(self.metric, "tokens/s")


@dataclass(frozen=True)
class LatencyLimits:
    """Per-request limits of an attainment or goodput gate, in seconds; None where not limited.

    `classes` holds further limits, (class, limits), for the requests of a class.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None
    classes: tuple[tuple[str, LatencyLimits], ...] = ()

    @property
    def text(self) -> str:
        """The limits as a user would write them."""
        parts = [("ttft", self.ttft_s), ("tpot", self.tpot_s), ("e2e", self.e2e_s)]
        return ",".join(f"{name}<={_seconds(v)}" for name, v in parts if v is not None)


@dataclass(frozen=True)
class SloSet:
    """All objectives of a run.

    Attributes:
        limits: metric limits in the order given.
        attainment: (share, limits) or None.
        goodput: (requests per second, limits) or None.
    """

    limits: tuple[Slo, ...] = ()
    attainment: tuple[float, LatencyLimits] | None = None
    goodput: tuple[float, LatencyLimits] | None = None

    @property
    def texts(self) -> list[str]:
        """Every objective as a text, in a fixed order."""
        out = [slo.text for slo in self.limits]
        if self.attainment:
            out.append(f"attainment({self.attainment[1].text})>={self.attainment[0]:g}")
        if self.goodput:
            out.append(f"goodput({self.goodput[1].text})>={self.goodput[0]:g}/s")
        return out

    def limit_on(self, metric: str) -> Slo | None:
        """Return the tightest limit on a latency of all requests over its statistics, or None."""
        return self._tightest_on(metric, None)

    @property
    def classes(self) -> tuple[RequestClass, ...]:
        """The classes of requests that have limits of their own, in the order given."""
        return tuple(dict.fromkeys(slo.group for slo in self.limits if slo.group is not None))

    def request_limits(self) -> LatencyLimits:
        """Return the limits that goodput is counted with.

        The goodput gate's own, else the attainment gate's, else the tightest latency limits.
        """
        gate = self.goodput or self.attainment
        return gate[1] if gate else self._tightest()

    def attainment_limits(self) -> LatencyLimits:
        """Return the limits that attainment is counted with.

        The attainment gate's own, else the goodput gate's, else the tightest latency limits.
        """
        gate = self.attainment or self.goodput
        return gate[1] if gate else self._tightest()

    def _tightest(self) -> LatencyLimits:
        inner = tuple((group.name, self._of_class(group)) for group in self.classes)
        return replace(self._of_class(None), classes=inner)

    def _of_class(self, group: RequestClass | None) -> LatencyLimits:
        limits = {m: self._tightest_on(m, group) for m in ("ttft", "tpot", "e2e")}
        found = {m: slo.limit if slo else None for m, slo in limits.items()}
        return LatencyLimits(found["ttft"], found["tpot"], found["e2e"])

    def _tightest_on(self, metric: str, group: RequestClass | None) -> Slo | None:
        found = [
            slo for slo in self.limits
            if slo.metric == metric and slo.at_most and slo.group == group
        ]  # fmt: skip
        return min(found, key=lambda slo: slo.limit) if found else None


def in_class(metric: str, name: str) -> str:
    """Return a metric of one class of requests: `ttft`, `short` -> `ttft@short`."""
    return f"{metric}@{name}"


def latency_column(metric: str, statistic: str) -> str:
    """Return the column of a statistic: `ttft`, `p99.9` -> `ttft_p99_9_s`.

    The statistic stands before the unit, `output_tokens_p1_per_s_per_user`, and so does the class:
    `ttft@short`, `p99` -> `ttft_p99_in_short_s`.
    """
    base, _, group = metric.partition("@")
    name = statistic.replace(".", "_") + (f"_in_{group}" if group else "")
    return f"output_tokens_{name}_per_s_per_user" if base == USER_RATE else f"{base}_{name}_s"


def _seconds(value: float) -> str:
    return f"{value * 1e3:g}ms" if value < 1 else f"{value:g}s"


def parse_slos(value: Any, path: str = "slo") -> tuple[SloSet, list[Fault]]:
    """Return the objectives in a mapping or list of texts, and every fault found."""
    faults: list[Fault] = []
    limits: list[Slo] = []
    gates: dict[str, tuple[float, LatencyLimits]] = {}
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "classes":
                _parse_classes(item, f"{path}.classes", limits, faults)
            elif key == "sla":
                texts, found = from_sla(item, f"{path}.sla")
                faults += found
                for text in texts:
                    _parse_text(text, f"{path}.sla", limits, gates, faults)
            else:
                _parse_entry(str(key), item, f"{path}.{key}", limits, gates, faults)
    elif isinstance(value, list):
        for i, text in enumerate(value):
            _parse_text(text, f"{path}[{i}]", limits, gates, faults)
    else:
        faults.append(
            Fault(path, f"found {value!r}, expected a mapping or a list such as ['ttft:p99<=2s']")
        )
    seen: dict[str, str] = {}
    for slo in limits:
        if slo.column in seen:
            faults.append(
                Fault(path, f"{slo.column} is limited twice: {seen[slo.column]}, {slo.text}")
            )
        seen[slo.column] = slo.text
    named: dict[str, RequestClass] = {}
    for group in (slo.group for slo in limits if slo.group is not None):
        first = named.setdefault(group.name, group)
        if first != group:
            faults.append(Fault(path, f"class {group.name!r} is two: {first.text}, {group.text}"))
    return SloSet(tuple(limits), gates.get("attainment"), gates.get("goodput")), faults


def _add_limit(
    metric: str, statistic: str, value: Any, path: str, limits: list[Slo], faults: list[Fault]
) -> None:
    name = _ALIASES.get(metric, metric)
    stat = _STATISTICS.get(statistic, statistic.replace("_", "."))
    if name in LATENCY_METRICS or name == USER_RATE:
        example = latency_column(name, "p99" if name != USER_RATE else "p1").removesuffix("_s")
        if not stat:
            text = f"say which statistic of {name}: mean, p50, p95, p99 (as `{example}`)"
            faults.append(Fault(path, text))
            return
        if stat != "mean" and not 0 < float(stat[1:]) < 100:
            faults.append(Fault(path, f"percentile {stat!r} must lie above p0 and below p100"))
            return
        at_most = name != USER_RATE
        number = positive(value, "s" if at_most else "per_s", path, faults)
        if number is not None:
            limits.append(Slo(name, stat, at_most=at_most, limit=number))
    elif name in RATES and not stat:
        number = positive(value, "per_s", path, faults)
        if number is not None:
            limits.append(Slo(name, "", at_most=False, limit=number))
    else:
        rates = ", ".join(RATES)
        text = (
            f"unknown objective {metric!r}; known are ttft, tpot, itl, e2e and {USER_RATE} with a "
            f"statistic (ttft_p99), {rates}, attainment and goodput"
        )
        faults.append(Fault(path, text))


def _parse_entry(
    key: str,
    item: Any,
    path: str,
    limits: list[Slo],
    gates: dict[str, tuple[float, LatencyLimits]],
    faults: list[Fault],
) -> None:
    if key in {"attainment", "goodput"}:
        _add_gate(key, item, path, gates, faults)
        return
    match = _KEY.match(key) or _USER_KEY.match(key)
    metric, statistic = (match[1], match[2]) if match else (key, "")
    if match and match.re is _USER_KEY:
        metric = USER_RATE
    elif match and match[3] == "_ms":
        item = in_ms(item)
    _add_limit(metric, statistic, item, path, limits, faults)


def _add_gate(
    kind: str,
    item: Any,
    path: str,
    gates: dict[str, tuple[float, LatencyLimits]],
    faults: list[Fault],
) -> None:
    if found := parse_gate(kind, item, path, gates, faults):
        values = found[2]
        limits = LatencyLimits(values.get("ttft_s"), values.get("tpot_s"), values.get("e2e_s"))
        gates[found[0]] = (found[1], limits)


def _parse_classes(value: Any, path: str, limits: list[Slo], faults: list[Fault]) -> None:
    """Note the limits of `classes: {short: {where: input_tokens<512, ttft_p99: 2 s}}`."""
    example = "{short: {where: input_tokens<512, ttft_p99: 2 s}}"
    if not isinstance(value, Mapping) or not value:
        faults.append(Fault(path, f"found {value!r}, expected classes by name as {example}"))
        return
    for name, item in value.items():
        at = f"{path}.{name}"
        if not isinstance(item, Mapping) or "where" not in item:
            faults.append(Fault(f"{at}.where", f"missing; write the class as {example}"))
            continue
        group = parse_class(name, item["where"], at, faults)
        own: list[Slo] = []
        gates: dict[str, tuple[float, LatencyLimits]] = {}
        for key, entry in item.items():
            if key != "where":
                _parse_entry(str(key), entry, f"{at}.{key}", own, gates, faults)
        if len(item) == 1:
            faults.append(Fault(at, f"has no limit; write the class as {example}"))
        _add_to_class(group, own, gates, at, limits, faults)


def _add_to_class(
    group: RequestClass | None,
    own: list[Slo],
    gates: Mapping[str, Any],
    path: str,
    limits: list[Slo],
    faults: list[Fault],
) -> None:
    """Note the limits of one class: only what is counted request by request has classes."""
    for name in [*gates, *(slo.metric for slo in own if slo.metric not in _BY_REQUEST)]:
        allowed = f"ttft, tpot, e2e and {USER_RATE} with a statistic"
        faults.append(Fault(path, f"{name} is not counted by class; a class takes {allowed}"))
    if group is not None:
        limits += [replace(slo, group=group) for slo in own]


def _parse_text(
    text: Any,
    path: str,
    limits: list[Slo],
    gates: dict[str, tuple[float, LatencyLimits]],
    faults: list[Fault],
) -> None:
    if not isinstance(text, str):
        faults.append(Fault(path, f"found {text!r}, expected a text such as 'ttft:p99<=500ms'"))
        return
    if text.lstrip().startswith("--"):
        texts, found = from_flags(text, path)
        faults += found
        for native in texts:
            _parse_text(native, path, limits, gates, faults)
        return
    if gate := _GATE.match(text):
        item: dict[str, Any] = {"share" if gate[1] == "attainment" else "per_s": gate[3]}
        for part in gate[2].split(","):
            inner = _INNER.match(part)
            if inner is None:
                faults.append(Fault(path, f"cannot read {part.strip()!r}, expected 'ttft<=500ms'"))
                return
            name = GATE_METRICS.get(inner[1], inner[1])
            wanted = ">=" if name == USER_RATE else "<="
            if inner[2] != wanted:
                faults.append(Fault(path, f"{inner[1]} is limited with {wanted}, found {part!r}"))
                return
            if inner[1] in item:
                faults.append(Fault(path, f"{inner[1]} is limited twice in one gate"))
            item[inner[1]] = inner[3]
        _add_gate(gate[1], item, path, gates, faults)
        return
    if parts := split_class(text):
        group = parse_class(parts[0], parts[1], path, faults)
        own: list[Slo] = []
        its_gates: dict[str, tuple[float, LatencyLimits]] = {}
        _parse_text(parts[2], path, own, its_gates, faults)
        _add_to_class(group, own, its_gates, path, limits, faults)
        return
    match = _TEXT.match(text)
    if match is None:
        faults.append(
            Fault(
                path,
                f"cannot read {text!r}; forms are 'ttft:p99<=500ms', 'output_tokens_per_s>=5000', "
                "'attainment(ttft<=2s,tpot<=50ms)>=0.95', 'goodput(ttft<=2s)>=4/s', "
                "'short(input_tokens<512): ttft:p99<=2s'",
            )
        )
        return
    metric, statistic, sign, value = match[1], match[2] or "", match[3], match[4]
    wanted = ">=" if _ALIASES.get(metric, metric) in {*RATES, USER_RATE} else "<="
    if sign != wanted:
        faults.append(Fault(path, f"{metric} is limited with {wanted}, found {text!r}"))
        return
    _add_limit(metric, statistic, value, path, limits, faults)

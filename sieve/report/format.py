"""Numbers, deployments and reasons in words; all rounding of a report happens here.

Every function takes what a result file may hold, None and NaN included, and returns plain text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from sieve.units import GIB

UNKNOWN: Final = "unknown"

_REASONS: Final = {
    "tp_divides": "The tensor parallel size does not divide the query heads or the width.",
    "tp_divides_heads": "The tensor parallel size does not divide the query heads.",
    "kv_heads_tp": "The KV heads can be neither split nor copied evenly over the tensor ranks.",
    "tp_divides_width": "The tensor parallel size does not divide a width of the model.",
    "vocab_tp": "The tensor parallel size does not divide the padded vocabulary.",
    "quant_blocks": "A rank's part of a quantised matrix is not made of whole blocks.",
    "data_parallel": "These engines cannot run as data-parallel ranks that share experts.",
    "ep_size": "Experts go on all ranks or on none; this size does neither.",
    "ep_divides_experts": "The expert parallel size does not divide the number of experts.",
    "pp_divides": "The pipeline size does not divide the number of layers.",
    "pp_layers": "There are more pipeline stages than layers.",
    "decode_context_parallel": "The ranks cannot share out the tokens of the KV cache this way.",
    "node": "One replica needs more GPUs than a node holds, or more nodes than it may span.",
    "gpu_budget": "All replicas together need more GPUs than the fleet may have.",
    "tokens_cover_seqs": "The token budget of a step is below its sequence limit.",
    "tokens_cover_len": "Prompts stay whole and the token budget of a step is below their limit.",
    "context_limit": "The context asked for is longer than the model's own limit.",
    "rates_known": "The GPU's arithmetic or link rate is not known, so there is no step time.",
    "dtype_supported": "The GPU is too old for the precision of the weights or the KV cache.",
    "model_len": "The longest request is longer than the model can read.",
    "weights_overflow": "The weights do not fit into the memory that the engine may use.",
    "no_page": "Beside the weights there is no room for one usable block of KV cache.",
    "max_model_len": "The KV cache is too small for one request of the length asked for.",
    "pages": "The KV cache is too small for one mean request.",
    "tpot": "Even one request at a time takes longer per token than the TPOT objective allows.",
    "slim": "Even one request at a time takes longer end to end than the objective allows.",
    "bound_misses_slo": "Even the most optimistic bound misses an objective.",
    "not_selected": "Could still work, but others scored better; it was not simulated.",
    "max_wait_exceeded": "A request waited longer than --max-wait; the replay stopped there.",
    "queue_grows_without_bound": "Requests arrive faster than they are served: the queue grows.",
    "request_exceeds_cache": "The longest request does not fit into the KV cache.",
}

_NAMES: Final = {
    "output_tokens_per_s": "output tokens/s",
    "output_tokens_per_s_per_gpu": "output tokens/s per GPU",
    "requests_per_s": "requests/s",
    "goodput_per_s": "goodput",
    "slo_attainment": "SLO attainment",
    "usd_per_mtok": "USD per million output tokens",
    "num_gpus": "number of GPUs",
}


def number(value: Any) -> float | None:
    """Return `value` as a float, or None where it is missing, not a number, or NaN."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return None if math.isnan(value) else float(value)


def plain(value: Any, digits: int = 3) -> str:
    """Return a number to `digits` significant digits, whole thousands grouped: `1,234`, `0.012`."""
    x = number(value)
    if x is None:
        return UNKNOWN
    if math.isinf(x):
        return "infinite" if x > 0 else "-infinite"
    if x == 0:
        return "0"
    decimals = digits - 1 - math.floor(math.log10(abs(x)))
    rounded = round(x, decimals)  # 9.999 becomes 10.0, which needs one decimal less
    if rounded and math.floor(math.log10(abs(rounded))) > math.floor(math.log10(abs(x))):
        decimals -= 1
    return f"{x:,.{max(decimals, 0)}f}"


def seconds(value: Any) -> str:
    """Return a time with its unit: `87.0 µs`, `352 ms`, `2.31 s`."""
    x = number(value)
    if x is None:
        return UNKNOWN
    size = abs(x)
    if size == 0 or size >= 0.9995:
        return f"{plain(x)} s"
    return f"{plain(x * 1e3)} ms" if size >= 0.9995e-3 else f"{plain(x * 1e6)} µs"


def duration(value_s: float) -> str:
    """Return a time in words that a person waits by."""
    if value_s < 90:
        return f"{value_s:.1f} s" if value_s < 10 else f"{value_s:.0f} s"
    return f"{value_s / 60:.0f} min" if value_s < 5400 else f"{value_s / 3600:.1f} h"


def money(value: Any) -> str:
    """Return US dollars: `1.99 USD`, `0.0123 USD`, `1,234 USD`."""
    x = number(value)
    if x is None:
        return UNKNOWN
    if 0.1 <= abs(x) < 1000:
        return f"{x:.2f} USD"
    return f"{plain(x)} USD"


def share(value: Any) -> str:
    """Return a share in percent; only 0 and 1 themselves read `0 %` and `100 %`."""
    x = number(value)
    if x is None or math.isinf(x):
        return plain(x)
    percent = x * 100
    for decimals in (1, 2, 3):
        text = f"{percent:,.{decimals}f}"
        if (float(text.replace(",", "")) in (0.0, 100.0)) == (percent in (0.0, 100.0)):
            return f"{text.removesuffix('.0')} %"
    return "below 0.001 %" if percent < 50 else "above 99.999 %" if percent < 100 else "100 %"


def count(value: Any) -> str:
    """Return a whole number with thousands separators: `15,360`."""
    x = number(value)
    if x is None:
        return UNKNOWN
    return plain(x) if math.isinf(x) else f"{round(x):,}"


def gib(value: Any) -> str:
    """Return bytes as GiB: `31.6 GiB`."""
    x = number(value)
    return UNKNOWN if x is None else f"{plain(x / GIB)} GiB"


def quantity(value: Any, unit: str) -> str:
    """Return a value in its unit; times and shares get their usual look.

    `unit` is one of `sieve.frames.METRICS` or free text, such as an objective's own text.
    """
    if unit in ("s", "seconds") or unit.startswith(("ttft", "tpot", "itl", "e2e")):
        return seconds(value)
    if unit == "" or unit.startswith(("attainment", "slo_attainment")):
        return share(value)
    if unit == "USD" or unit.startswith("usd"):
        return money(value)
    x = number(value)
    if x is None:
        return UNKNOWN
    if unit.startswith("bytes"):
        return f"{gib(x)}{unit.removeprefix('bytes')}"
    if unit.startswith(("goodput", "requests_per_s")):
        unit = "requests/s"
    elif unit.startswith("output_tokens_per_s"):
        unit = "tokens/s"
    text = count(x) if x == round(x) and abs(x) < 1e15 else plain(x)
    return f"{text} {unit}"


def limit_text(value: Any, unit: str) -> str:
    """Return a limit in its unit without needless zeros: `50 ms` and not `50.0 ms`."""
    figure, space, rest = quantity(value, unit).partition(" ")
    if "." in figure:
        figure = figure.rstrip("0").rstrip(".")
    return f"{figure}{space}{rest}"


def metric_name(metric: str) -> str:
    """Return a metric's name in words: `ttft_p99_s` becomes `TTFT p99`."""
    if metric in _NAMES:
        return _NAMES[metric]
    words = metric.removesuffix("_s").split("_")
    if words[0] in ("ttft", "tpot", "itl", "e2e"):
        words[0] = words[0].upper()
    return " ".join(words)


def class_words(row: Mapping[str, Any]) -> str:
    """Return the verdict on each class of requests, "" where the objectives name none."""
    found = row.get("classes") or {}
    return ", ".join(f"{name} {entry['verdict']}" for name, entry in found.items())


def metric_value(metric: str, value: Any) -> str:
    """Return the value of a metric named as in a ranking, with its unit."""
    if metric.startswith("usd"):
        return money(value)
    if metric == "slo_attainment":
        return share(value)
    if "tokens_per_s" in metric:
        return f"{plain(value)} tokens/s" if number(value) is not None else UNKNOWN
    if metric.endswith("_per_s"):
        return f"{plain(value)} requests/s" if number(value) is not None else UNKNOWN
    return seconds(value) if metric.endswith("_s") else plain(value)


def interval(
    metric: str, low: float | None, mid: float | None, high: float | None
) -> tuple[str, str]:
    """Return the middle of an interval and its range, `353 ms` and `246 to 505 ms`.

    The unit is left out where the name of the metric says it; the range is "" where unknown.
    """
    bare = " USD" if metric.startswith("usd") else " tokens/s"
    first, last, middle = (metric_value(metric, x).removesuffix(bare) for x in (low, high, mid))
    if number(low) is None or number(high) is None:
        return middle, ""
    if first.rpartition(" ")[2] == last.rpartition(" ")[2]:
        first = first.rpartition(" ")[0]
    return middle, f"{first} to {last}"


def axis_format(metric: str) -> Callable[[float], str]:
    """Return how values of a metric are written along an axis, in as few letters as possible."""

    def rate(value: float) -> str:
        text = metric_value(metric, value)
        return text.removesuffix(" tokens/s").removesuffix(" requests/s").removesuffix(" USD")

    def time(value: float) -> str:
        return limit_text(value, "s")

    if metric == "num_gpus":
        return lambda value: f"{value:g}"
    return time if metric.endswith("_s") and not metric.endswith("_per_s") else rate


def whole_share(value: Any) -> str:
    """Return a share as whole percent, for numbers that need no more."""
    x = number(value)
    return UNKNOWN if x is None or math.isinf(x) else f"{100 * x:.0f} %"


def data_parallel_ranks(row: Mapping[str, Any]) -> int:
    """Return the data-parallel ranks of a ranking row or a candidate row, 1 where it has none."""
    held = row if "data_parallel_size" in row else row.get("options") or {}
    return int(number(held.get("data_parallel_size")) or 1)


def deployment(row: Mapping[str, Any]) -> str:
    """Return a deployment as a phrase, from a ranking row or a candidate row.

    Such as `4 × H100-SXM-80GB (TP 2 × 2 replicas, FP8 weights, FP8 KV cache)`; with
    several models, the model first.
    """
    sizes = [f"TP {count(row.get('tp'))}"]
    sizes += [f"{k.upper()} {count(row[k])}" for k in ("pp",) if (number(row.get(k)) or 1) > 1]
    if (ranks := data_parallel_ranks(row)) > 1:
        sizes.append(f"DP {count(ranks)}")
    replicas = number(row.get("replicas"))
    sizes.append(f"{count(replicas)} replica{'' if replicas == 1 else 's'}")
    parts = [" × ".join(sizes)]
    if (number(row.get("ep")) or 1) > 1:
        parts.append(f"EP {count(row['ep'])}")
    parts.append(f"{_precision(row.get('weight_dtype'))} weights")
    parts.append(f"{_precision(row.get('kv_cache_dtype'))} KV cache")
    gpu = row.get("gpu")
    name = UNKNOWN if gpu is None else str(gpu)
    served = f"{row['model']} on " if row.get("model") else ""
    return f"{served}{count(row.get('num_gpus'))} × {name} ({', '.join(parts)})"


def engine_limits(row: Mapping[str, Any]) -> str:
    """Return the limits of one iteration: `512 sequences, 8,192 tokens a step`."""
    sequences, tokens = row.get("max_num_seqs"), row.get("max_num_batched_tokens")
    return f"{count(sequences)} sequences, {count(tokens)} tokens a step"


def short_deployment(row: Mapping[str, Any]) -> str:
    """Return a deployment in few letters: `4 × H100-SXM-80GB TP2 ×2, fp8/fp8, s512 b8192`."""
    sizes = f"TP{count(row.get('tp'))}"
    shown = {"pp": row.get("pp"), "dp": data_parallel_ranks(row), "ep": row.get("ep")}
    for key, size in shown.items():
        if (number(size) or 1) > 1:
            sizes += f" {key.upper()}{count(size)}"
    gpus = f"{count(row.get('num_gpus'))} × {row.get('gpu') or UNKNOWN}"
    dtypes = f"{row.get('weight_dtype') or UNKNOWN}/{row.get('kv_cache_dtype') or UNKNOWN}"
    limits = f"s{row.get('max_num_seqs')} b{row.get('max_num_batched_tokens')}"
    served = f"{str(row['model']).rsplit('/', 1)[-1]}, " if row.get("model") else ""
    return f"{served}{gpus} {sizes} ×{count(row.get('replicas'))}, {dtypes}, {limits}"


def _precision(name: Any) -> str:
    if name is None:
        return UNKNOWN
    text = str(name)
    return text if text == "auto" else text.upper()


def reason_sentence(reason: str) -> str:
    """Return what a rejection reason means, or the reason itself where it is not known."""
    known = _REASONS.get(reason)
    return known if known is not None else f"{reason.replace('_', ' ').capitalize()}."


def is_reason(text: str) -> bool:
    """Return whether `text` is the name of a rejection reason."""
    return text in _REASONS


_AXES: Final = {
    "gpu": "GPU",
    "tp": "TP",
    "pp": "PP",
    "ep": "EP",
    "weight_dtype": "weight precision",
    "kv_cache_dtype": "KV cache precision",
}


def axis_words(axis: str) -> str:
    """Return the name of an axis as people say it; engine options keep their own name."""
    return _AXES.get(axis, axis)

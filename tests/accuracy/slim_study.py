"""The saturation model against public measurements, as the page `reports/validation/slim.md`.

    SIEVE_DATA=FOLDER python tests/accuracy/slim_study.py [FILE]

Reads `measured/memgap_bsc.csv` (data of "Mind the Memory Gap", arXiv 2503.08311; Apache-2.0) and
`measured/argonne_llm_inference_bench.csv` (LLM-Inference-Bench; BSD-3-Clause) and writes figures,
not rows. The scenarios of the source name OPT models and lengths that these data do not hold; the
page says what stands in for each.
"""

from __future__ import annotations

import csv
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sieve.calibration.observations import Observation, read_observations
from sieve.calibration.saturation import hardware_facts, model_facts
from sieve.catalog.accelerators import load_gpu
from sieve.catalog.models import load_model
from sieve.errors import InvalidInput, SieveError
from sieve.formulas import slim_fit
from sieve.formulas.baselines import imai_ood_lr, llmvisor_agg
from sieve.formulas.slim_model import VARIANTS, Hardware, Model, Params, read_hardware, read_model
from sieve.formulas.slim_scenarios import split

OUT = Path(__file__).parents[2] / "reports" / "validation" / "slim.md"
# Shapes of the models' own configs that the catalogue lacks.
FACTS = {
    "EleutherAI/gpt-j-6b": {"L": 28, "D": 4096, "Hq": 16, "Hkv": 16, "r_ff": 4},
    "Qwen/Qwen1.5-7B": {
        "L": 32, "D": 4096, "Hq": 32, "Hkv": 32, "r_ff": 11008 / 4096, "ffn_projections": 3,
    },
    "huggyllama/llama-7b": {
        "L": 32, "D": 4096, "Hq": 32, "Hkv": 32, "r_ff": 11008 / 4096, "ffn_projections": 3,
    },
    "Qwen/Qwen2-72B": {
        "L": 80, "D": 8192, "Hq": 64, "Hkv": 8, "r_ff": 29568 / 8192, "ffn_projections": 3,
    },
}  # fmt: skip
# Beyond these lengths the engines refuse requests, and the rates mean nothing.
CONTEXT = {"EleutherAI/gpt-j-6b": 2048, "huggyllama/llama-7b": 2048}
METHODS = (*VARIANTS, "llmvisor_agg", "imai_ood_lr")
NAMES = {"printed": "printed", "dense_offset": "dense_offset", "llmvisor_agg": "LLMVisor-agg",
         "imai_ood_lr": "Imai-OOD-LR"}  # fmt: skip


@dataclass(frozen=True)
class Point:
    """One measured point as every method reads it."""

    name: str
    model: Model
    isl: float
    osl: float
    batch: float
    rate: float
    itl: float | None = None
    capped: bool = False
    budget: float | None = None

    @property
    def e2e(self) -> float:
        """Seconds of a request in the batch, by Little's law."""
        return self.batch * (self.isl + self.osl) / self.rate

    @property
    def observation(self) -> slim_fit.Observation:
        """The point as the fit reads it."""
        return slim_fit.Observation(self.model, self.isl, self.osl, self.batch, self.rate)


Sides = tuple[list[Point], list[Point]]


def facts_of(name: str) -> tuple[str, Model]:
    """Return short name and shape of a model."""
    if name in FACTS:
        return name.rpartition("/")[2], read_model(FACTS[name])
    arch = load_model(name)
    return arch.name.rpartition("/")[2].removesuffix("-hf"), read_model(model_facts(arch))


def memory_gap(path: Path) -> tuple[list[Point], list[Point]]:
    """Return the fixed-length sweep and the ShareGPT sweep of one engine on one GPU."""
    fixed, chat = [], []
    for row in read_observations([path]).rows:
        if "group=advisor" in row.notes:
            fixed.append(point(row))
        elif "group=background" in row.notes:
            chat.append(point(row))
    return fixed, chat


def point(row: Observation) -> Point:
    """Return a row of the memory-gap data; `capped` where memory set the batch."""
    name, model = facts_of(row.model)
    preempted = re.search(r"preemptions=(\d+)", row.notes)
    short = row.batch < 0.85 * (row.max_num_seqs or row.batch)
    return Point(
        name, model, row.isl, row.osl, row.batch, row.tokens_per_s, row.tpot_s,
        capped=short or bool(preempted and int(preempted[1])), budget=row.max_num_batched_tokens,
    )  # fmt: skip


def offline(path: Path) -> dict[tuple[str, str, int], tuple[Hardware, list[Point]]]:
    """Return the offline batches of NVIDIA GPUs by (gpu, engine, number of GPUs)."""
    groups: dict[tuple[str, str, int], list[Point]] = defaultdict(list)
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            key = (row["gpu"], row["engine"], int(row["num_gpus"]))
            if row["gpu"].startswith(("MI",)) or (key[2] > 1 and row["gpu"][:4] != "H100"):
                continue
            name, model = facts_of(row["model"])
            numbers = (float(row[c]) for c in ("isl_mean", "osl_mean", "concurrency"))
            isl, osl, batch = numbers
            if isl + osl > CONTEXT.get(row["model"], 4096):
                continue
            gpu = load_gpu(row["gpu"])
            room = 0.9 * gpu.memory_bytes * key[2] - weight_bytes(model)
            cache = 2 * model.layers * model.kv_width * 2 * batch * (isl + osl)
            groups[key].append(
                Point(name, model, isl, osl, batch, float(row["total_tok_s"]), capped=cache > room)
            )
    found = {}
    for key, points in groups.items():
        if len(points) < 10:
            continue
        limits = hardware_facts(load_gpu(key[0]))
        found[key] = (Hardware(limits["F_max"] * key[2], limits["BW_max"] * key[2]), points)
    return found


def weight_bytes(model: Model) -> float:
    """Return the bytes of the layers' weights in 16 bits, embeddings left out."""
    attention = 2 * model.width * (model.query_width + model.kv_width)
    return 2 * model.layers * (attention + model.ffn_projections * model.ffn_ratio * model.width**2)


# Methods ------------------------------------------------------------------------------------------


def errors_of(
    method: str, hardware: Hardware, train: Sequence[Point], test: Sequence[Point]
) -> tuple[np.ndarray, int]:
    """Return relative throughput errors of the test side, and how many predictions were invalid."""
    if method in VARIANTS:
        return slim_fit.relative_errors(
            [p.observation for p in test], hardware, fitted(hardware, train, method).params
        ), 0
    if method == "imai_ood_lr":
        return baseline(imai_ood_lr, [{**shape(p), "e2e": p.e2e} for p in train], test)
    parts = [
        llmvisor([t for t in train if t.name == n] or train, [p for p in test if p.name == n])
        for n in dict.fromkeys(p.name for p in test)
    ]
    return np.concatenate([part[0] for part in parts]), sum(part[1] for part in parts)


def llmvisor(train: Sequence[Point], test: Sequence[Point]) -> tuple[np.ndarray, int]:
    """Return the errors of LLMVisor-agg; the rest of the latency counts as time to first token."""
    rows = []
    for p in train:
        ttft = p.e2e - (p.osl - 1) * (p.itl or 0)
        if p.itl and ttft > 0:
            rows.append({**shape(p), "ttft": ttft, "itl": p.itl})
    return baseline(llmvisor_agg, rows, test) if rows else (np.array([]), len(test))


def fitted(hardware: Hardware, train: Iterable[Point], variant: str) -> slim_fit.FitResult:
    """Return the fit of one form."""
    return slim_fit.fit_observations([p.observation for p in train], hardware, variant)


def shape(p: Point) -> dict[str, float]:
    """Return the columns of the baselines."""
    return {"B": p.batch, "IL": p.isl, "OL": p.osl, "D": p.model.width, "L": p.model.layers,
            "Hq": p.model.query_heads}  # fmt: skip


def baseline(
    function: Callable[[dict], dict], train: list[dict], test: Sequence[Point]
) -> tuple[np.ndarray, int]:
    """Return a baseline's errors row by row, so that one invalid prediction costs one row."""
    errors, invalid = [], 0
    for p in test:
        try:
            got = function({"train": train, "test": [shape(p)]})["throughput"][0]
            errors.append(got / p.rate - 1)
        except InvalidInput:
            invalid += 1
    return np.array(errors), invalid


def mean_text(errors: np.ndarray, invalid: int) -> str:
    """Return mean absolute error in percent, with the count of invalid predictions."""
    if not errors.size:
        return f"- ({invalid} invalid)" if invalid else "-"
    text = f"{100 * np.abs(errors).mean():.1f}"
    return f"{text} ({invalid} invalid)" if invalid else text


# Splits -------------------------------------------------------------------------------------------


def by(
    points: Sequence[Point], train: Callable[[Point], bool], test: Callable[[Point], bool]
) -> Sides:
    """Return the two sides of a split."""
    return [p for p in points if train(p)], [p for p in points if test(p)]


def same_curve(points: Sequence[Point]) -> Sides:
    """Return the split of `slim.split` over the curves with four or more distinct batches."""
    curves: dict[tuple[str, float, float], dict[float, Point]] = defaultdict(dict)
    for p in points:
        curves[p.name, p.isl, p.osl].setdefault(p.batch, p)
    kept = [p for curve in curves.values() if len(curve) >= 4 for p in curve.values()]
    rows = [
        {"model": p.name, "IL": p.isl, "OL": p.osl, "B": p.batch, "throughput": p.rate}
        for p in kept
    ]
    sides = split({"scenario": "same_curve", "observations": rows})
    return [kept[i] for i in sides["train"]], [kept[i] for i in sides["validate"]]


def sweep_scenarios(fixed: Sequence[Point], chat: Sequence[Point]) -> dict[str, tuple[str, Sides]]:
    """Return what stands in for the source's scenarios on the memory-gap data."""
    large = "Llama-2-13b"

    def small(p: Point) -> bool:
        return p.name != large

    def near(p: Point, *lengths: int) -> bool:
        return any(abs(p.osl - n) <= 1 for n in lengths)

    lengths = by(
        fixed, lambda p: small(p) and near(p, 130, 260), lambda p: small(p) and near(p, 520)
    )
    model = by(
        fixed, lambda p: small(p) and near(p, 390), lambda p: p.name == large and near(p, 390)
    )
    return {
        "same_curve": ("three points up to the knee of each curve; all others", same_curve(fixed)),
        "model_transfer": ("OPT-1.3B, OPT-2.7B, Llama-2-7B at OL 390; Llama-2-13B there", model),
        "output_length_transfer": ("these three at OL 130 and 260; the three at OL 520", lengths),
        "input_length_transfer": (
            "OPT-1.3B at IL 242, all OL; its ShareGPT sweep (mean IL 111, mean OL 292, mixed "
            "lengths, no chunked prefill)",
            ([p for p in fixed if p.name == "opt-1.3b"], [p for p in chat if p.name == "opt-1.3b"]),
        ),
        "combined": (
            "union of the training sides of model and output length; Llama-2-13B at OL 520",
            by(
                fixed,
                lambda p: small(p) and near(p, 130, 260, 390),
                lambda p: p.name == large and near(p, 520),
            ),
        ),
    }


def leave_one_out(points: Sequence[Point], key: Callable[[Point], object]) -> list[Sides]:
    """Return one split for each value of a key."""
    values = sorted({key(p) for p in points}, key=str)
    return [by(points, lambda p, v=v: key(p) != v, lambda p, v=v: key(p) == v) for v in values]


# Page ---------------------------------------------------------------------------------------------


def params_text(params: Params) -> str:
    """Return the six parameters in one cell."""
    return (
        f"{params.eta_c:.2g} | {params.eta_m:.2g} | {params.alpha:.1e} | {params.gamma:.1e} | "
        f"{params.offset:.3g} | {params.fixed_s:.1e}"
    )


def fits_table(groups: Sequence[tuple[str, Hardware, Sequence[Point]]]) -> list[str]:
    """Return the joint fits of both forms."""
    lines = [
        "| data | points | form | error % | eta_c | eta_m | alpha | gamma | B0 | t_fixed | flags |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for label, hardware, points in groups:
        for variant in VARIANTS:
            got = fitted(hardware, points, variant)
            flags = ", ".join(got.flags) or "none"
            lines.append(
                f"| {label} | {len(points)} | {variant} | {got.mape_percent:.1f} | "
                f"{params_text(got.params)} | {flags} |"
            )
    return lines


def scenario_table(hardware: Hardware, scenarios: dict[str, tuple[str, Sides]]) -> list[str]:
    """Return held-out errors by scenario and method."""
    names = " | ".join(NAMES[m] for m in METHODS)
    lines = [
        f"| scenario | trained on; judged on | train | judge | {names} |",
        f"|---|---|---|---|{'---|' * len(METHODS)}",
    ]
    for name, (words, (train, test)) in scenarios.items():
        cells = " | ".join(mean_text(*errors_of(m, hardware, train, test)) for m in METHODS)
        lines.append(f"| `{name}` | {words} | {len(train)} | {len(test)} | {cells} |")
    return lines


def offline_table(
    groups: dict[tuple[str, str, int], tuple[Hardware, list[Point]]],
) -> list[str]:
    """Return held-out errors on the offline batches; there LLMVisor-agg lacks its inputs."""
    methods = ("printed", "dense_offset", "imai_ood_lr")
    lines = [
        f"| data | held out | train | judge | {' | '.join(NAMES[m] for m in methods)} |",
        f"|---|---|---|---|{'---|' * len(methods)}",
    ]
    for key, (hardware, points) in groups.items():
        splits: dict[str, list[Sides]] = {
            "same curve (batch 64)": [same_curve(points)],
            "each length in turn": leave_one_out(points, lambda p: p.isl),
            "length 1024, trained on 128 and 512": [
                by(points, lambda p: p.isl in (128, 512), lambda p: p.isl == 1024)
            ],
        }
        if len({p.name for p in points}) > 1:
            splits["each model in turn"] = leave_one_out(points, lambda p: p.name)
        for words, sides in splits.items():
            cells = []
            for method in methods:
                parts = [errors_of(method, hardware, *side) for side in sides]
                errors = np.concatenate([part[0] for part in parts])
                cells.append(mean_text(errors, sum(part[1] for part in parts)))
            train = round(np.mean([len(side[0]) for side in sides]))
            judge = sum(len(side[1]) for side in sides)
            lines.append(f"| {label_of(key)} | {words} | {train} | {judge} | {' | '.join(cells)} |")
    return lines


def regime_table(hardware: Hardware, points: Sequence[Point]) -> list[str]:
    """Return errors by step budget over batch, each curve judged by a fit to the other curves."""
    methods = VARIANTS
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for train, test in leave_one_out(points, lambda p: (p.name, p.osl)):
        for method in methods:
            errors, _ = errors_of(method, hardware, train, test)
            for p, error in zip(test, errors, strict=True):
                found[regime(p)][method].append(error)
                if p.capped:
                    found["batch set by memory (any budget)"][method].append(error)
    return regime_lines(found, methods)


def offline_regimes(groups: dict[tuple[str, str, int], tuple[Hardware, list[Point]]]) -> list[str]:
    """Return errors of the offline batches by whether their cache fits, each length held out."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for key, (hardware, points) in groups.items():
        for train, test in leave_one_out(points, lambda p: p.isl):
            for method in VARIANTS:
                errors, _ = errors_of(method, hardware, train, test)
                for p, error in zip(test, errors, strict=True):
                    words = "does not fit: the engine splits it" if p.capped else "fits"
                    found[f"{label_of(key)}: batch {words}"][method].append(error)
    return regime_lines(found, VARIANTS)


def regime(p: Point) -> str:
    """Return the regime of a point: tokens of a step's budget for each running request."""
    share = (p.budget or 0) / p.batch
    for rank, (least, words) in enumerate(((64, "64 or more"), (16, "16 to 64"), (4, "4 to 16"))):
        if share >= least * 0.98:
            return f"{rank + 1}. {words} budget tokens a request (B up to {512 // least})"
    return "4. below 4 budget tokens a request (B above 128)"


def regime_lines(found: dict[str, dict[str, list[float]]], methods: Sequence[str]) -> list[str]:
    """Return a table of mean error and bias by regime."""
    head = " | ".join(f"{m} mean % | bias %" for m in methods)
    lines = [f"| regime | points | {head} |", f"|---|---|{'---|---|' * len(methods)}"]
    for name in sorted(found, key=lambda n: ("memory" in n, n)):
        cells = []
        for method in methods:
            errors = 100 * np.array(found[name][method])
            cells.append(f"{np.abs(errors).mean():.1f} | {np.median(errors):+.1f}")
        lines.append(f"| {name} | {len(errors)} | {' | '.join(cells)} |")
    return lines


def label_of(key: tuple[str, str, int]) -> str:
    """Return the name of an offline group."""
    gpu, engine, count = key
    return f"{f'{count} x ' if count > 1 else ''}{gpu}, {engine}"


def page(folder: Path) -> str:
    """Return the page."""
    fixed, chat = memory_gap(folder / "memgap_bsc.csv")
    groups = offline(folder / "argonne_llm_inference_bench.csv")
    hardware = read_hardware(hardware_facts(load_gpu("H100-SXM-64GB")))
    joint = [("memory gap, fixed lengths", hardware, fixed)]
    joint += [(label_of(key), *value) for key, value in groups.items()]
    models = ";\n".join(
        f"{label_of(key)}: {', '.join(sorted({p.name for p in points}))}"
        for key, (_, points) in groups.items()
    )
    parts = [
        "# Saturation model against public measurements\n",
        "Written by `tests/accuracy/slim_study.py`. Errors are of total throughput, mean of "
        "absolute values in percent;\nnegative bias (a median): predicted too slow. No measurement "
        "of the source of the model is public, so these are\nstand-ins and none is its truth.\n",
        'Data: "Mind the Memory Gap" (FerranAgulloLopez/vLLMBatchingMemoryGap at a9186347, '
        "Apache-2.0): vLLM between 0.6.3\nand 0.6.4 on the H100 with 64 GB, all requests at once, "
        "`max_num_seqs` swept, budget 512 tokens a step. The batch is\nthe mean of running "
        f"requests, latency follows by Little's law. {len(fixed)} points of fixed lengths, "
        f"{len(chat)} of ShareGPT lengths.\nLLM-Inference-Bench (argonne-lcf at 4211f5d4, "
        "BSD-3-Clause): offline batches, IL = OL, 2024 engines\n"
        f"({models}).\nFour GPUs count as one with four times the rates. Points beyond a model's "
        "context limit are left out:\nthe engine refuses them.\n",
        "## Joint fits\n",
        *fits_table(joint),
        "\n## Scenarios on the memory-gap data\n",
        "The source's OPT-125M to 6.7B at OL 32 to 512 are not in the data; the second column says "
        "what stands in.\nLLMVisor-agg knows no model: it is trained on the judged model alone "
        "where the training side has it. It is given the\nmean time between tokens, and the rest "
        "of the latency as time to first token.\n",
        *scenario_table(hardware, sweep_scenarios(fixed, chat)),
        "\n## Held-out points of the offline batches\n",
        "LLMVisor-agg is left out: these data have no time to first token and none between tokens. "
        "Imai-OOD-LR counts only\npredictions above zero.\n",
        *offline_table(groups),
        "\n## By regime\n",
        "Memory-gap data; each curve judged by a fit to all other curves. Step budget (512 tokens) "
        "for each running request:\nthe smaller, the more decoding crowds out prompts.\n",
        *regime_table(hardware, fixed),
        "\nOffline batches; each length judged by a fit to the other lengths. A batch whose cache "
        "exceeds 90 % of memory less the\nweights runs in several waves, which the model does not "
        "know.\n",
        *offline_regimes(groups),
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    """Write the page."""
    folder = os.environ.get("SIEVE_DATA")
    if not folder:
        raise SystemExit("set SIEVE_DATA to the folder that holds measured/")
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    try:
        out.write_text(page(Path(folder) / "measured"), encoding="utf-8")
    except SieveError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()

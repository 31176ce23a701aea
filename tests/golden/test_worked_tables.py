"""The published tables in `examples/bounds`: inputs, printed figures and page agree.

Figures that the files give as `published` are text, as printed: the formulas' values, rounded to as
many digits, must read the same. Cases that name a `golden` case must have its inputs and outputs.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sieve.evaluate import evaluate_cases

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "worked_tables.md").read_text(encoding="utf-8")
FILES = sorted((ROOT / "examples" / "bounds").glob("*.json"))
GOLDEN = {
    case["id"]: case
    for case in json.loads(
        Path(__file__).with_name("seed_values.json").read_text(encoding="utf-8")
    )["cases"]
}
# What a column of a table holds: path in the output and decimals.
COLUMNS = {
    "small_machines": [("b_mem", 0), ("single", 0), ("memory_power", 0), ("b_star", 0),
                       ("aggregate", 0), ("per_session", 1)],
    "forced_concurrency": [("batch", 0), ("aggregate", 0), ("per_session", 1)],
    "prefill_spark": [("mem_rate", 0), ("comp_rate", 0), ("rate", 0), ("t", 3), ("limit", 0)],
    "toy_machine": [("sessions", 0), ("memory_power_bound", 0)],
}  # fmt: skip
# Rows of the tables that hold one figure a row.
FIGURES = {
    "crossover-bf16": ("S_star", 0), "crossover-fp4": ("S_star", 0),
    "crossover-dense-4bit": ("S_star", 2), "attention-8192": ("flops_per_token/1e9", 3),
    "experts-128": ("m", 0), "decode-band": ("mape_percent", 1),
}  # fmt: skip
ROW = re.compile(r"^\| `([\w-]+)` \| (.*) \|$", re.MULTILINE)


def load(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def at(output: Any, path: str) -> Any:
    """Return what stands at a dotted path; `/1e9` divides."""
    path, _, divisor = path.partition("/")
    for key in path.split("."):
        output = output[int(key)] if isinstance(output, list) else output[key]
    return output / float(divisor) if divisor else output


def written(value: Any, decimals: int) -> str:
    return value if isinstance(value, str) else f"{value:,.{decimals}f}"


def section_rows(name: str) -> list[tuple[str, list[str]]]:
    """Return (case, cells) of the page's section that shows a file; bold marks removed."""
    (section,) = [part for part in PAGE.split("\n## ") if f"`examples/bounds/{name}.json`:" in part]
    return [(row, cells.replace("**", "").split(" | ")) for row, cells in ROW.findall(section)]


def agrees(found: Any, expected: Any) -> bool:
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(agrees, found, expected))
    if isinstance(expected, dict):
        return all(agrees(found[key], value) for key, value in expected.items())
    return bool(found == (expected if isinstance(expected, str) else pytest.approx(expected, 1e-9)))


def outputs(path: Path) -> dict[str, Any]:
    return {result["id"]: result["output"] for result in evaluate_cases(path)}


PUBLISHED = [
    pytest.param(path, case["id"], key, text, id=f"{path.stem}-{case['id']}-{key}")
    for path in FILES
    for case in load(path)["cases"]
    for key, text in case.get("published", {}).items()
]


def test_every_file_is_on_the_page_and_names_its_source() -> None:
    assert [path.stem for path in FILES] == [
        "forced_concurrency", "gb10_runs", "prefill_spark", "small_machines", "toy_machine",
    ]  # fmt: skip
    for path in FILES:
        assert f"`examples/bounds/{path.name}`" in PAGE
        assert len(load(path)["source"]) > 40
        assert load(path)["kind"]


@pytest.mark.parametrize(("path", "case", "key", "text"), PUBLISHED)
def test_printed_figures_are_reproduced(path: Path, case: str, key: str, text: str) -> None:
    decimals = len(text.partition(".")[2])
    assert written(at(outputs(path)[case], key), decimals) == text


def test_the_printed_figures_are_those_of_the_sources() -> None:
    printed = [(case, key, text) for _, case, key, text in (p.values for p in PUBLISHED)]
    assert [text for _, key, text in printed if key == "b_star"] == [
        "17", "16", "7", "50", "66", "22",
    ]  # fmt: skip
    assert {text for _, _, text in printed} >= {
        "397", "12.4", "482", "7.5", "434", "13.6", "581", "9.1", "2,066", "8,263", "4,444",
        "17,778", "31.25", "1.866", "254",
    }  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_cases_have_the_inputs_and_outputs_of_the_golden_values(path: Path) -> None:
    found = outputs(path)
    for case in load(path)["cases"]:
        if "golden" not in case:
            continue
        golden = GOLDEN[case["golden"]]
        assert (case["function"], case["inputs"]) == (golden["function"], golden["inputs"])
        for key, value in golden["expected"].items():
            assert agrees(found[case["id"]][key], value), (case["id"], key)


@pytest.mark.parametrize("name", COLUMNS)
def test_the_page_shows_what_the_formulas_give(name: str) -> None:
    path = ROOT / "examples" / "bounds" / f"{name}.json"
    found, seen = outputs(path), set()
    for case, cells in section_rows(name):
        seen.add(case)
        if case in FIGURES:
            key, decimals = FIGURES[case]
            assert cells[-1] == written(at(found[case], key), decimals)
            continue
        output = found[case]
        if "rows" in output:
            (output,) = [row for row in output["rows"] if written(row["batch"], 0) == cells[0]]
        assert cells == [written(at(output, key), decimals) for key, decimals in COLUMNS[name]]
    assert seen == found.keys()


def test_the_page_shows_the_runs_as_shares_of_their_ceilings() -> None:
    path = ROOT / "examples" / "bounds" / "gb10_runs.json"
    cases, found = {case["id"]: case for case in load(path)["cases"]}, outputs(path)
    rows = dict(section_rows("gb10_runs"))
    assert rows.keys() == cases.keys()
    for name, cells in rows.items():
        if name in FIGURES:
            key, decimals = FIGURES[name]
            assert cells[-1] == written(at(found[name], key), decimals)
            continue
        measured = cases[name]["measured"]["prompt_tokens_per_s"]
        assert measured < found[name]["rate"]
        assert cells[-1] == written(100 * measured / found[name]["rate"], 0)


def test_bold_figures_are_those_that_were_printed() -> None:
    bold = set(re.findall(r"\*\*([\d.,]+)\*\*", PAGE))
    printed = {p.values[3] for p in PUBLISHED}
    assert bold == printed | {"2,348"}

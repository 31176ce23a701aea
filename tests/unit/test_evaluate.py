"""The formula registry and `sieve eval`: names, refusals, JSON in and out."""

from __future__ import annotations

import copy
import io
import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sieve import evaluate as registry
from sieve.cli.evaluate import evaluate as command
from sieve.errors import InvalidInput
from sieve.evaluate import FUNCTIONS, evaluate, evaluate_cases, read_input, read_json
from sieve.formulas.baselines import BASELINES
from sieve.formulas.bounds import BOUNDS
from sieve.formulas.sched import SCHED
from sieve.formulas.sizing_cases import SIZING
from sieve.formulas.slim import SLIM

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "seed_values.json"
CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]
OWN = SIZING.keys() | SCHED.keys()
ACCEPTED = [c for c in CASES if c["function"] in OWN and "error" not in c["expected"]]
SHARE = {"isl": 3, "osl": 1}

app = typer.Typer()
app.command("eval")(command)


# --- the registry ----------------------------------------------------------------------------


def test_no_name_is_taken_twice() -> None:
    parts = [SLIM, BASELINES, BOUNDS, SIZING, SCHED]
    assert sum(map(len, parts)) == len(FUNCTIONS)
    assert {name.split(".")[0] for name in FUNCTIONS} == {
        "slim", "baseline", "bounds", "sizing", "sched",
    }  # fmt: skip


def test_the_page_lists_every_function() -> None:
    page = (ROOT / "docs" / "formulas.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([a-z]+\.[a-z0-9_]+)` \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(FUNCTIONS)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_the_page_names_inputs_and_outputs(name: str) -> None:
    page = (ROOT / "docs" / "formulas.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
    words = set(re.findall(r"\w+", row)) | {"error"}
    for case in CASES:
        if case["function"] == name:
            assert case["inputs"].keys() | case["expected"].keys() <= words


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("sizing.kv_page", "did you mean sizing.kv_pages"),
        ("kv_pages", r"did you mean sizing.kv_pages\?"),
        ("predict", r"did you mean slim.predict\?"),
        ("zzz", "modules are: slim, "),
        ("", "modules are"),
        ("y" * 500, r"unknown function 'y{57}\.\.\.'"),
    ],
)
def test_an_unknown_function_gets_the_nearest_names(name: str, hint: str) -> None:
    with pytest.raises(InvalidInput, match=hint):
        evaluate(name, {})


def test_infinities_become_null_and_numpy_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np

    outputs = {
        "a": math.inf, "b": [np.float64(-math.inf), (1, np.int64(2))], "c": np.array([1.5, np.inf]),
        "d": {"e": np.bool_(True)}, "f": None,
    }  # fmt: skip
    monkeypatch.setattr(registry, "FUNCTIONS", {"x.y": lambda _: outputs})
    plain = {"a": None, "b": [None, [1, 2]], "c": [1.5, None], "d": {"e": True}, "f": None}
    assert evaluate("x.y", {}) == plain
    assert json.loads(json.dumps(evaluate("x.y", {}), allow_nan=False)) == plain


def test_what_is_not_a_number_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "FUNCTIONS", {"x.y": lambda _: {"a": [math.nan]}})
    with pytest.raises(InvalidInput, match=r"x\.y: the inputs leave the range"):
        evaluate("x.y", {})


# --- whatever is handed in is answered or refused ---------------------------------------------

JUNK = (None, True, "x", [], {}, [[]], -1, 0, 0.5, 1e-300, 1e300, 10**400, math.nan, math.inf)

LABELS = {"name", "token_budget", "max_num_seqs"}
"""Parts of a grid that only count, so that any value will do."""


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each part of an input; of long lists the first two entries."""
    entries = value.items() if isinstance(value, dict) else enumerate(value[:2])
    for key, entry in entries:
        yield (*path, key)
        if isinstance(entry, dict | list):
            yield from leaves(entry, (*path, key))


def put(inputs: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(inputs)
    here: Any = changed
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = value
    return changed


@pytest.mark.parametrize("case", ACCEPTED, ids=[case["id"] for case in ACCEPTED])
def test_junk_is_answered_or_refused(case: dict[str, Any]) -> None:
    for path in leaves(case["inputs"]):
        for junk in JUNK:
            try:
                output = evaluate(case["function"], put(case["inputs"], path, junk))
            except InvalidInput:
                continue
            json.dumps(output, allow_nan=False)
            finite = not isinstance(junk, float) or math.isfinite(junk)
            assert finite or LABELS & set(path), path


@pytest.mark.parametrize("name", sorted(OWN))
def test_inputs_are_known_by_name(name: str) -> None:
    inputs = next(case["inputs"] for case in ACCEPTED if case["function"] == name)
    with pytest.raises(InvalidInput, match="colour: unknown input"):
        evaluate(name, {**inputs, "colour": 1})
    for junk in (None, [], 3, "x"):
        with pytest.raises(InvalidInput, match="expected an object"):
            FUNCTIONS[name](junk)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"missing input: \w"):
        evaluate(name, {})


def test_an_optional_input_of_null_is_not_given() -> None:
    case = next(c for c in ACCEPTED if c["id"] == "sizing.kv_pages/two-pages-accepted")
    given = {**case["inputs"], "tp": None, "utilisation": None}
    assert evaluate("sizing.kv_pages", given) == evaluate("sizing.kv_pages", case["inputs"])


# --- JSON documents --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"{", "in.json: line 1, column 2: not JSON"),
        (b"", "not JSON"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "key 'c' stands twice"),
        (b'{"a": NaN}', "found NaN"),
        (b'{"a": -Infinity}', "found -Infinity"),
        (b'{"a": 1e999}', "found 1e999"),
        (b'{"a": ' + b"9" * 5000 + b"}", "too many digits"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a": "\\ud800"}', "not UTF-8"),
    ],
)
def test_bad_json_is_refused(data: bytes, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        read_json(io.BytesIO(data), "in.json")


def test_good_json_is_read() -> None:
    assert read_json(io.BytesIO(b'\xef\xbb\xbf{"a": 1.5e3}'), "x") == {"a": 1500.0}
    assert read_json(io.BytesIO(b'{"a": "\\u00b5"}'), "x") == {"a": "µ"}


def test_large_input_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "MAX_INPUT_BYTES", 20)
    path = tmp_path / "in.json"
    path.write_text('{"a": 34567890123}  ')
    assert read_input(path) == {"a": 34567890123}
    path.write_text('{"a": 34567890123}   ')
    with pytest.raises(InvalidInput, match="larger than 20 bytes"):
        read_input(path)


@pytest.mark.parametrize("name", ["absent.json", ".", "a\0b"])
def test_unreadable_files_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_input(tmp_path / name)


def cases_file(folder: Path, *cases: Any) -> Path:
    path = folder / "cases.json"
    path.write_text(json.dumps({"format": 1, "cases": cases}))
    return path


def test_cases_keep_their_order_and_their_faults(tmp_path: Path) -> None:
    path = cases_file(
        tmp_path,
        {"id": "b", "function": "sizing.prefill_share", "inputs": SHARE, "expected": {}},
        {"id": 2, "function": "sizing.prefill_share", "inputs": {"isl": 3}},
        {"id": "c", "function": "sizing.prefill_shares", "inputs": {}},
        {"id": "d", "function": "sizing.prefill_share", "inputs": [1]},
    )
    found = evaluate_cases(path)
    assert [entry["id"] for entry in found] == ["b", 2, "c", "d"]
    outputs = [entry["output"] for entry in found]
    assert outputs[0] == {"share": 0.75}
    assert outputs[1] == {"error": "invalid_input", "message": "missing input: osl"}
    assert outputs[2]["error"] == "unknown_function"
    assert "sizing.prefill_share" in outputs[2]["message"]
    assert outputs[3]["error"] == "invalid_input"


@pytest.mark.parametrize(
    ("case", "named"),
    [
        (3, r"cases\[0\]: expected an object"),
        ({"id": 1, "function": "x"}, r"cases\[0\]: has no `inputs`"),
        ({"id": 1, "function": 3, "inputs": {}}, r"cases\[0\]\.function: expected a text"),
    ],
)
def test_bad_case_files_are_refused(case: Any, named: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=named):
        evaluate_cases(cases_file(tmp_path, case))


def test_a_file_without_cases_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for text in ("[]", "{}", '{"cases": {}}', "3"):
        path.write_text(text)
        with pytest.raises(InvalidInput, match="expected an object with a list `cases`"):
            evaluate_cases(path)


# --- the command -----------------------------------------------------------------------------


def call(*args: str, stdin: str | None = None) -> tuple[int, Any, str]:
    done = CliRunner().invoke(app, [*args], input=stdin)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("flags", [(), ("--json",), ("--input", "-")])
def test_eval_reads_stdin(flags: tuple[str, ...]) -> None:
    found = call("sizing.prefill_share", *flags, stdin=json.dumps(SHARE))
    assert found == (0, {"share": 0.75}, "")


def test_eval_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text(json.dumps(SHARE))
    assert call("sizing.prefill_share", "--input", str(path)) == (0, {"share": 0.75}, "")


def test_a_state_is_a_result() -> None:
    inputs = {"tp": 3, "pp": 1, "replicas": 1, "heads": 4, "width": 4, "layers": 4, "gpu_budget": 9}
    code, found, _ = call("sizing.stage1", stdin=json.dumps(inputs))
    assert (code, found) == (0, {"ok": False, "reason": "tp_divides"})


@pytest.mark.parametrize(
    ("name", "stdin", "error", "message"),
    [
        ("sizing.prefill_share", '{"isl": 3}', "invalid_input", "missing input: osl"),
        ("sizing.prefill_share", "{", "invalid_input", "stdin: line 1, column 2: not JSON"),
        ("sizing.prefil_share", "", "unknown_function", "did you mean sizing.prefill_share"),
    ],
)
def test_a_refusal_is_a_document_and_exit_code_2(
    name: str, stdin: str, error: str, message: str
) -> None:
    code, found, stderr = call(name, stdin=stdin)
    assert (code, found["error"]) == (2, error)
    assert message in found["message"]
    assert stderr == f"error: {found['message']}\n"


def test_an_absent_input_file_is_a_refusal() -> None:
    code, found, _ = call("sizing.prefill_share", "--input", "absent.json")
    assert (code, found["error"]) == (2, "invalid_input")
    assert "absent.json: cannot be read" in found["message"]


def test_a_terminal_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", type("Terminal", (), {"isatty": lambda _: True})())
    with pytest.raises(typer.Exit) as stop:
        command("sizing.prefill_share", None, None, as_json=False)
    assert stop.value.exit_code == 2
    assert "give --input FILE" in capsys.readouterr().err


def test_eval_of_cases(tmp_path: Path) -> None:
    path = cases_file(
        tmp_path,
        {"id": "a", "function": "sizing.prefill_share", "inputs": SHARE},
        {"id": "b", "function": "sizing.prefill_share", "inputs": {}},
    )
    code, found, stderr = call("--cases", str(path))
    assert (code, stderr) == (0, "")
    assert [entry["id"] for entry in found] == ["a", "b"]
    assert found[0]["output"] == {"share": 0.75}
    assert found[1]["output"]["error"] == "invalid_input"


@pytest.mark.parametrize(
    "args",
    [(), ("sizing.scaling", "--cases", "x.json"), ("--cases", "x.json", "--input", "-"),
     ("--cases", "absent.json")],
)  # fmt: skip
def test_usage_is_refused(args: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput):
        call(*args)

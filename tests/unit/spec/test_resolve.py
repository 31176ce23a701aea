"""The run spec: the example of the documentation, every fault at once, overrides and merging."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sieve.errors import SpecError
from sieve.spec import LatencyLimits, Slo, load_spec

EXAMPLE = Path(__file__).parents[2] / "data" / "example_spec.yaml"
Make = Callable[..., dict[str, Any]]


def faults_of(spec: Any, **options: Any) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        load_spec(spec, **options)
    return {fault.path: fault.message for fault in caught.value.faults}


def test_the_documented_example_loads_as_printed() -> None:
    spec = load_spec(EXAMPLE)
    assert spec.run.name == "chat-assistant"
    assert (spec.model, spec.engine, spec.grid_name) == ("Qwen/Qwen3-32B", "vllm==0.19", "default")
    traffic = spec.run.traffic
    assert (traffic.trace, traffic.window_s, traffic.requests) == ("chat", (0.0, 1800.0), 2000)
    assert (traffic.rate_per_s, traffic.levels) == (12.0, [0.5, 0.75, 1.0, 1.25, 1.5])
    assert spec.slos.limits == (
        Slo("ttft", "p99", at_most=True, limit=2.0),
        Slo("tpot", "p99", at_most=True, limit=0.05),
        Slo("e2e", "p99", at_most=True, limit=30.0),
        Slo("output_tokens_per_s", "", at_most=False, limit=5000.0),
    )
    assert spec.slos.attainment == (0.95, LatencyLimits(2.0, 0.05))
    assert spec.slos.goodput == (4.0, LatencyLimits(2.0, 0.05))
    assert spec.fleet.gpus == ["H100-SXM-80GB", "L40S-48GB"]
    assert (spec.fleet.max_gpus, spec.fleet.gpus_per_node) == (32, 8)
    assert spec.fleet.usd_per_gpu_hour == {"H100-SXM-80GB": 6.25}
    assert (spec.fleet.billing, spec.fleet.routing) == ("gpu", "round_robin")
    assert (spec.run.batch_sizing, spec.run.seed) == ("ledger", 0)
    shortlist = spec.run.shortlist
    assert (shortlist.size, shortlist.per_family, shortlist.exhaustive_below) == (20, 3, 0)
    assert (spec.run.rank.objective, spec.run.rank.confidence) == ("usd_per_mtok", 0.9)


def test_defaults_of_a_short_spec() -> None:
    spec = load_spec(
        {
            "name": "x",
            "model": "Qwen/Qwen3-32B",
            "traffic": {"trace": "chat"},
            "slo": ["ttft:p99<=2s"],
            "fleet": {"gpus": ["L40S-48GB"]},
        }
    )
    assert spec.run.traffic.levels == [0.5, 0.75, 1.0, 1.25, 1.5]
    assert (spec.fleet.billing, spec.fleet.routing) == ("gpu", "round_robin")
    assert spec.fleet.usd_per_gpu_hour is None
    assert (spec.run.shortlist.size, spec.run.shortlist.per_family) == (20, 3)
    assert (spec.run.rank.objective, spec.run.rank.confidence) == ("usd_per_mtok", 0.9)
    assert (spec.run.seed, spec.run.load_bytes, spec.grid_name) == (0, "peak", "default")


def test_every_fault_at_once(make_spec: Make) -> None:
    spec = make_spec(
        {
            "name": "a/b",
            "modle": "x",
            "traffic.levels": [0.5, 2.0],
            "traffic.rate_per_s": "4 kg",
            "traffic.levles": 1,
            "slo": {"ttft_p99": 0, "tpot_p99": "-5 ms", "attainment": {"share": 1.2, "ttft": "x"}},
            "fleet.gpus": [],
            "fleet.max_gpu": 4,
            "fleet.billing": "hour",
            "shortlist.sise": 3,
            "rank.confidence": 1,
            "seed": -1,
            "grid.axes.tp": [],
        }
    )
    faults = faults_of(spec)
    assert {
        "name",
        "modle",
        "traffic.levels",
        "traffic.rate_per_s",
        "traffic.levles",
        "slo.ttft_p99",
        "slo.tpot_p99",
        "slo.attainment.share",
        "slo.attainment.ttft",
        "fleet.gpus",
        "fleet.max_gpu",
        "fleet.billing",
        "shortlist.sise",
        "rank.confidence",
        "seed",
        "grid.axes.tp.values",
    } == set(faults)
    assert "did you mean 'model'?" in faults["modle"]
    assert "did you mean 'levels'?" in faults["traffic.levles"]
    assert "did you mean 'max_gpus'?" in faults["fleet.max_gpu"]
    assert "did you mean 'size'?" in faults["shortlist.sise"]
    assert "'kg'" in faults["traffic.rate_per_s"]
    assert "1.0" in faults["traffic.levels"]


@pytest.mark.parametrize("missing", ["name", "traffic", "slo"])
def test_a_missing_key(make_spec: Make, missing: str) -> None:
    assert faults_of(make_spec({missing: None})) == {missing: "missing; add it"}


def test_all_missing_keys_at_once() -> None:
    assert set(faults_of({"model": "x"})) == {"name", "traffic", "slo"}


@pytest.mark.parametrize(
    ("changes", "path", "complaint"),
    [
        ({"model": None}, "model", "missing"),
        ({"fleet.gpus": None}, "fleet.gpus", "missing"),
        ({"traffic": {}}, "traffic", "exactly one of trace and synthetic"),
        ({"traffic.trace": "chat"}, "traffic", "exactly one of trace and synthetic"),
        ({"traffic.levels": []}, "traffic.levels", "at least 1 item"),
        ({"traffic.levels": [0.5]}, "traffic.levels", "must contain 1.0"),
        ({"traffic.levels": [1.0, 1.0]}, "traffic.levels", "twice"),
        ({"traffic.levels": [1.0, -1]}, "traffic.levels[1]", "greater than 0"),
        ({"traffic.levels": [1.0, float("nan")]}, "traffic.levels[1]", ""),
        ({"traffic.rate_per_s": 0}, "traffic.rate_per_s", "greater than 0"),
        ({"traffic.rate_per_s": -2}, "traffic.rate_per_s", "greater than 0"),
        ({"traffic.rate_per_s": float("nan")}, "traffic.rate_per_s", "finite"),
        ({"traffic.window_s": [10, 5]}, "traffic", "end after start"),
        ({"traffic.requests": 5}, "traffic", "inside synthetic"),
        ({"traffic.synthetic.isl": -5}, "traffic.synthetic.isl.value", "greater than or equal"),
        ({"traffic.synthetic.isl": 0}, "traffic.synthetic.isl.value", "greater than or equal"),
        ({"traffic.synthetic.osl": 2.5}, "traffic.synthetic.osl", ""),
        ({"traffic.synthetic.isl": {"mean": 5}}, "traffic.synthetic.isl", "stdev"),
        (
            {"traffic.synthetic.isl": {"distribution": "uniform", "min": 5, "max": 4}},
            "traffic.synthetic.isl",
            "below min",
        ),
        ({"traffic.synthetic.arrival": {}}, "traffic.synthetic.arrival", "exactly one"),
        (
            {"traffic.synthetic.arrival": {"burst": True, "closed_loop": 2}},
            "traffic.synthetic.arrival",
            "closed_loop, burst",
        ),
        ({"traffic.synthetic.requests": 0}, "traffic.synthetic.requests", "greater than or equal"),
        ({"slo": {}}, "slo", "is empty"),
        ({"slo": []}, "slo", "is empty"),
        ({"seed": "0"}, "seed", "whole number"),
        ({"seed": True}, "seed", "whole number"),
        ({"seed": 2**63}, "seed", "less than or equal"),
        ({"name": "../x"}, "name", "letters, digits"),
        ({"name": ""}, "name", "letters, digits"),
        ({"name": "x\n"}, "name", "letters, digits"),
        ({"name": 5}, "name", "a text"),
        ({"fleet.max_gpus": 0}, "fleet.max_gpus", "greater than or equal"),
        ({"fleet.max_gpus": 10**30}, "fleet.max_gpus", "less than or equal"),
        ({"fleet.usd_per_gpu_hour": {"X": -1}}, "fleet.usd_per_gpu_hour.X", "greater than 0"),
        ({"rank.confidence": 0.5}, "rank.confidence", "greater than 0.5"),
        ({"grid": "defualt"}, "grid", "default"),
        ({"grid": {"axes": {}}}, "grid.axes", "at least 1 item"),
        ({"grid.axes.tp": 4}, "grid.axes.tp", "an axis is a list"),
        ({"grid.axes.tp": {"values": [1], "range": [1, 2]}}, "grid.axes.tp", "exactly one"),
        ({"grid.axis": 1}, "grid.axis", "did you mean 'axes'?"),
        ({"traffic": "chat"}, "traffic", ""),
        ({"fleet": ["H100"]}, "fleet", ""),
    ],
)
def test_one_fault_has_its_path(
    make_spec: Make, changes: dict[str, Any], path: str, complaint: str
) -> None:
    faults = faults_of(make_spec(changes))
    assert path in faults
    assert complaint in faults[path]


@pytest.mark.parametrize("key", ["int", "str", "float", "bool", "function-x", "a[0]"])
def test_an_unknown_key_with_an_odd_name_is_a_fault(make_spec: Make, key: str) -> None:
    spec = make_spec()
    spec[key] = 5
    assert any("unknown key" in message for message in faults_of(spec).values())


@pytest.mark.parametrize("key", [1, True, 1.5])
def test_a_key_that_is_no_text_is_a_fault(make_spec: Make, key: Any) -> None:
    spec = make_spec()
    spec[key] = 5
    assert faults_of(spec)


def test_a_number_beyond_double_precision_is_a_fault(make_spec: Make) -> None:
    assert faults_of(make_spec({"traffic.rate_per_s": 10**400}))
    assert faults_of(make_spec({"slo.ttft_p99": 10**400}))


def test_a_value_of_the_wrong_type_is_one_fault(make_spec: Make) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(make_spec(slo=5))
    assert len(caught.value.faults) == 1


def test_faults_of_a_file_name_it(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("name: x\nslo: {ttft_p99: 2 s}\ntrafic: {trace: chat}\n", encoding="utf-8")
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    text = str(caught.value)
    assert str(path) in text
    assert "2 faults" in text
    assert re.search(r"trafic \(line \d+\): unknown key; did you mean 'traffic'\?", text)


def test_overrides_are_applied_in_order(make_spec: Make) -> None:
    given = make_spec()
    before = copy.deepcopy(given)
    spec = load_spec(
        given,
        overrides=[
            "fleet.max_gpus=4",
            "fleet.max_gpus=16",
            "traffic.levels=[1.0, 2]",
            "rank.objective=num_gpus",
            "load_bytes=resident",
            "shortlist.size=7",
            "fleet.usd_per_gpu_hour.H100-SXM-80GB=1e0",
        ],
    )
    assert spec.fleet.max_gpus == 16
    assert spec.run.traffic.levels == [1.0, 2.0]
    assert spec.run.rank.objective == "num_gpus"
    assert spec.run.load_bytes == "resident"
    assert (spec.run.shortlist.size, spec.run.shortlist.per_family) == (7, 3)
    assert spec.fleet.usd_per_gpu_hour == {"H100-SXM-80GB": 1.0}
    assert given == before


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("fleet.max_gpus", "dotted.key=value"),
        ("=4", "dotted.key=value"),
        ("fleet..max_gpus=4", "dotted.key=value"),
        ("name.x=4", "has no keys"),
        ("seed=[1", "--set seed"),
        ("fleet.max_gps=4", "did you mean 'max_gpus'?"),
        ("seed=fast", "whole number"),
    ],
)
def test_a_bad_override(make_spec: Make, override: str, complaint: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(make_spec(), overrides=[override])
    assert complaint in str(caught.value)


def test_the_spec_wins_over_the_grid_key_by_key(make_spec: Make) -> None:
    grid = {
        "name": "mine",
        "model": "Qwen/Qwen3-32B",
        "engine": "reference",
        "fleet": {"max_gpus": 32, "gpus_per_node": 4, "billing": "node"},
        "axes": {"gpu": ["L40S-48GB"], "tp": [1]},
    }
    bare = make_spec({"grid": grid, "model": None, "fleet": {}})
    spec = load_spec(bare)
    assert (spec.model, spec.engine) == ("Qwen/Qwen3-32B", "reference")
    assert (spec.fleet.max_gpus, spec.fleet.gpus_per_node) == (32, 4)
    assert (spec.fleet.billing, spec.fleet.gpus) == ("node", None)

    own = make_spec(
        {"grid": grid, "model": "Qwen/Qwen3-8B", "engine": "vllm", "fleet": {"max_gpus": 2}}
    )
    spec = load_spec(own)
    assert (spec.model, spec.engine) == ("Qwen/Qwen3-8B", "vllm")
    assert (spec.fleet.max_gpus, spec.fleet.gpus_per_node) == (2, 4)
    assert spec.fleet.billing == "node"


def test_a_grid_file_is_found_beside_the_spec(tmp_path: Path, make_spec: Make) -> None:
    (tmp_path / "g.yaml").write_text("axes: {tp: [1, 2]}\nfleet: {max_gpus: 3}\n", encoding="utf-8")
    spec = load_spec(make_spec({"grid": "g.yaml", "fleet.max_gpus": None}), base_dir=tmp_path)
    assert spec.grid.axes["tp"].values == [1, 2]
    assert (spec.grid_name, spec.fleet.max_gpus) == ("g", 3)
    (tmp_path / "bad.yaml").write_text("axs: {tp: [1]}\n", encoding="utf-8")
    with pytest.raises(SpecError, match="did you mean 'axes'") as caught:
        load_spec(make_spec(grid="bad.yaml"), base_dir=tmp_path)
    assert "bad.yaml" in str(caught.value)


def test_the_resolved_spec_is_plain_data(make_spec: Make) -> None:
    data = load_spec(make_spec()).to_json()
    assert data["slo"] == [
        "ttft:p99<=2s",
        "tpot:p99<=50ms",
        "attainment(ttft<=2s,tpot<=50ms)>=0.95",
    ]
    assert data["engine"] == "vllm"
    assert (data["fleet"]["max_gpus"], data["fleet"]["gpus_per_node"]) == (2, 8)
    again = load_spec(data)
    assert again.to_json() == data


def test_the_resolved_spec_names_no_folder_of_this_machine(tmp_path: Path, make_spec: Make) -> None:
    traffic = {"trace": str(tmp_path / "t.csv"), "arrival": {"poisson_per_s": 1}}
    spec = load_spec(make_spec({"traffic": traffic}))
    assert str(tmp_path) not in str(spec.to_json())


@pytest.mark.parametrize(
    ("override", "path", "said"),
    [
        ("fleet.gpus=A100", "fleet.gpus", "expected a list, as in [A100]"),
        ("traffic.preset=chat", "traffic.preset", "did you mean 'trace'?"),
        ("traffic.qps=3", "traffic.qps", "did you mean 'rate_per_s'?"),
    ],
)
def test_a_fault_of_an_override_is_not_laid_to_the_file(
    override: str, path: str, said: str
) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec("chat", overrides=[override])
    (fault,) = caught.value.faults
    assert (fault.path, fault.line) == (path, None)
    assert said in fault.message
    assert fault.message.endswith("(given by --set)")

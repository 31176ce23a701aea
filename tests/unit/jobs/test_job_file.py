"""Jobs files: three ways of writing, one meaning, and what is refused."""

from __future__ import annotations

import json

import pytest

from sieve.errors import SpecError
from sieve.jobs.job_file import read_jobs
from sieve.jobs.merge import job_spec, merged, named
from sieve.spec.loader import stream_yaml

YAML = """
defaults:
  model: Qwen/Qwen3-8B
  slo: {ttft_p99: 2 s, tpot_p99: 50 ms}
  fleet: {gpus: [H100-SXM-80GB], max_gpus: 2}
jobs:
  - {name: one, traffic: {trace: chat, rate_per_s: 4}}
  - name: two
    traffic: {trace: chat, rate_per_s: 8}
    slo: {ttft_p99: 1 s}
"""


def write(tmp_path, text, name="jobs.yaml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def specs(path):
    jobs = read_jobs(path)
    return [job_spec(item, jobs).to_json() for item in named(jobs)]


def test_yaml_json_and_csv_mean_the_same(tmp_path):
    as_yaml = write(tmp_path, YAML)
    data = {
        "jobs": [
            {"name": "one", "traffic": {"trace": "chat", "rate_per_s": 4}},
            {
                "name": "two",
                "traffic": {"trace": "chat", "rate_per_s": 8},
                "slo": {"ttft_p99": "1 s"},
            },
        ],
        "defaults": {
            "model": "Qwen/Qwen3-8B",
            "slo": {"ttft_p99": "2 s", "tpot_p99": "50 ms"},
            "fleet": {"gpus": ["H100-SXM-80GB"], "max_gpus": 2},
        },
    }
    as_json = write(tmp_path, json.dumps(data), "jobs.json")
    as_csv = write(
        tmp_path,
        "name,model,traffic.trace,traffic.rate_per_s,slo.ttft_p99,slo.tpot_p99,fleet.gpus,"
        "fleet.max_gpus\r\n"
        "one,Qwen/Qwen3-8B,chat,4,2 s,50 ms,[H100-SXM-80GB],2\r\n"
        'two,Qwen/Qwen3-8B,chat,8,1 s,50 ms,"[H100-SXM-80GB]",2\r\n',
        "jobs.csv",
    )
    one, two = specs(as_yaml)
    assert [one["name"], two["name"]] == ["one", "two"]
    assert one["slo"] == ["ttft:p99<=2s", "tpot:p99<=50ms"]
    assert two["slo"] == ["ttft:p99<=1s", "tpot:p99<=50ms"]
    assert two["traffic"]["rate_per_s"] == 8
    assert specs(as_json) == [one, two]
    assert specs(as_csv) == [one, two]


def test_a_spec_file_keeps_its_own_folder_for_paths(tmp_path):
    (tmp_path / "teams").mkdir()
    (tmp_path / "teams" / "lengths.csv").write_text("input_length,output_length\n10,5\n")
    (tmp_path / "teams" / "a.yaml").write_text(
        "name: a\nmodel: Qwen/Qwen3-8B\n"
        "traffic: {trace: lengths.csv, arrival: {burst: true}}\n"
        "slo: {ttft_p99: 2 s}\nfleet: {gpus: [H100-SXM-80GB]}\n"
    )
    path = write(tmp_path, "jobs:\n  - {spec: teams/a.yaml, set: {fleet.max_gpus: 3}}\n")
    jobs = read_jobs(path)
    (item,) = named(jobs)
    spec = job_spec(item, jobs)
    assert item.name == "a"
    assert (spec.base_dir / spec.run.traffic.trace).read_text().startswith("input_length")
    assert spec.fleet.max_gpus == 3


def test_defaults_file_own_keys_and_set_win_in_that_order(tmp_path):
    (tmp_path / "s.yaml").write_text(
        "name: s\nmodel: Qwen/Qwen3-8B\ntraffic: {trace: chat}\nseed: 2\n"
        "slo: {ttft_p99: 2 s}\nfleet: {gpus: [H100-SXM-80GB], max_gpus: 2}\n"
    )
    path = write(
        tmp_path,
        "defaults: {seed: 1, fleet: {max_gpus: 1, gpus_per_node: 4}}\n"
        "jobs:\n"
        "  - {spec: s.yaml, fleet: {max_gpus: 5}}\n"
        "  - {spec: s.yaml, seed: 3, set: {seed: 4, slo.tpot_p99: 50 ms}}\n",
    )
    first, second = specs(path)
    assert (first["seed"], second["seed"]) == (2, 4)
    assert first["fleet"]["max_gpus"] == 5
    assert first["fleet"]["gpus_per_node"] == 4
    assert second["slo"] == ["ttft:p99<=2s", "tpot:p99<=50ms"]
    assert [first["name"], second["name"]] == ["s", "s-2"]


def test_null_takes_a_key_away_and_another_source_displaces_the_first():
    low = {"seed": 1, "traffic": {"trace": "chat", "requests": 50, "levels": [1.0]}}
    drawn = {"synthetic": {"isl": 1, "osl": 1, "arrival": {"burst": True}}}
    high = {"seed": None, "traffic": drawn}
    assert merged(low, high) == {"traffic": {"levels": [1.0], **drawn}}
    assert low["traffic"]["trace"] == "chat"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("j.yaml", "jobs: []", "is empty"),
        ("j.yaml", "jobs:", "is empty"),
        ("j.yaml", "jobs: {a: 1}", "expected a list"),
        ("j.yaml", "defaults: {}", "jobs: missing"),
        ("j.yaml", "jobs: [{name: a}]\nextra: 1", "unknown key"),
        ("j.yaml", "defaults: {modle: a}\njobs: [{name: a}]", "nearest: model"),
        ("j.yaml", "jobs: [{name: a, name: b}]", "given twice"),
        ("j.yaml", "jobs: [{name: a}]\njobs: [{name: a}]", "given twice"),
        ("j.yaml", "a: &a [1, 1]\njobs: [*a, *a]", "aliases"),
        ("j.yaml", "jobs: [" + "[" * 40 + "]" * 40 + "]", "nested deeper"),
        ("j.yaml", "jobs: [!!python/object:os.system {}]", "tag"),
        ("j.yaml", "", "empty file"),
        ("j.yaml", "- a", "mapping"),
        ("j.yaml", "jobs: [{a: 1}", "line"),
        ("j.json", "[]", "expected a mapping"),
        ("j.json", '{"jobs": [], "jobs": []}', "given twice"),
        ("j.json", '{"jobs": [{"seed": NaN}]}', "NaN"),
        ("j.json", '{"jobs": ' + "[" * 100_000, "not valid JSON"),
        ("j.csv", "name,modle\na,b\n", "column 'modle'"),
        ("j.csv", "name,name\na,b\n", "twice"),
        ("j.csv", "name,model\na\n", "1 fields where the header has 2"),
        ("j.csv", "name,model\n", "is empty"),
        ("j.csv", "name,slo,slo.ttft_p99\na,1,2 s\n", "slo has a value too"),
        ("j.csv", "name,seed\na,[1\n", "column 'seed' (line 2)"),
        ("j.toml", "a = 1", "unknown kind of file"),
    ],
)
def test_a_file_that_is_no_jobs_file_is_refused_in_one_message(tmp_path, name, text, words):
    with pytest.raises(SpecError) as caught:
        read_jobs(write(tmp_path, text, name))
    assert words in str(caught.value)
    assert name in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path):
    with pytest.raises(SpecError, match="no such jobs file"):
        read_jobs(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match="is not a file"):
        read_jobs(tmp_path)


def test_the_streaming_reader_agrees_with_the_whole_one(tmp_path):
    from sieve.spec import parse_yaml

    text = "a: {x: 1e-3, y: [no, 1_0, 007]}\njobs:\n- {n: 1}\n- two\n- [3, 4.5]\nb: |\n  text\n"
    found = list(stream_yaml(text, "t", listed="jobs"))
    whole = parse_yaml(text, "t")
    assert [value for key, _, value in found if key == "jobs"] == whole["jobs"]
    assert {key: value for key, _, value in found if key != "jobs"} == {
        "a": whole["a"],
        "b": whole["b"],
    }
    assert [line for key, line, _ in found if key == "jobs"] == [3, 4, 5]


SWEEP = """
defaults:
  traffic: {trace: chat}
  slo: {ttft_p99: 2 s}
  fleet: {gpus: [H100-SXM-80GB], max_gpus: 2}
jobs:
  - name: both
    set: {fleet.max_gpus: 4}
    sweep:
      model: [Qwen/Qwen3-8B, Qwen/Qwen3-30B-A3B]
      traffic.rate_per_s: [4, 0.5]
  - {name: alone, model: Qwen/Qwen3-8B, traffic: {rate_per_s: 1}}
"""


def test_a_sweep_is_a_job_of_every_combination(tmp_path):
    found = specs(write(tmp_path, SWEEP))
    assert [(spec["name"], spec["model"], spec["traffic"]["rate_per_s"]) for spec in found] == [
        ("both-qwen3-8b-4", "Qwen/Qwen3-8B", 4),
        ("both-qwen3-8b-0.5", "Qwen/Qwen3-8B", 0.5),
        ("both-qwen3-30b-a3b-4", "Qwen/Qwen3-30B-A3B", 4),
        ("both-qwen3-30b-a3b-0.5", "Qwen/Qwen3-30B-A3B", 0.5),
        ("alone", "Qwen/Qwen3-8B", 1),
    ]
    assert [spec["fleet"]["max_gpus"] for spec in found] == [4, 4, 4, 4, 2]


def test_values_that_make_no_text_count_in_the_name(tmp_path):
    text = SWEEP.replace(
        "traffic.rate_per_s: [4, 0.5]", "fleet.gpus: [[H100-SXM-80GB], [L40S-48GB]]"
    )
    text = text.replace("model: [Qwen/Qwen3-8B, Qwen/Qwen3-30B-A3B]", "model: [a/x, b/x]")
    names = [item.name for item in named(read_jobs(write(tmp_path, text)))]
    assert names == ["both-1-1", "both-1-2", "both-2-1", "both-2-2", "alone"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    set: {fleet.max_gpus: 4}\n", "    set: {model: x}\n", "is given beside the sweep"),
        ("model: [Qwen/Qwen3-8B, Qwen/Qwen3-30B-A3B]", "model: Qwen/Qwen3-8B", "expected a list"),
        ("[4, 0.5]", "[4, 4]", "a value is there twice"),
        ("[4, 0.5]", "[]", "expected a list of at least one value"),
        ("  - name: both\n    set", "  - set", "needs a name"),
        ("[4, 0.5]", "[4, none]", "both-qwen3-8b-none"),
    ],
)
def test_a_faulty_sweep_is_a_fault_of_its_job(tmp_path, old, new, message):
    assert old in SWEEP
    jobs = read_jobs(write(tmp_path, SWEEP.replace(old, new)))
    faults = []
    for item in named(jobs):
        try:
            job_spec(item, jobs)
        except SpecError as error:
            faults.append(str(error))
    assert message in faults[0]
    assert not any("alone" in fault for fault in faults)

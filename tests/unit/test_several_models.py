"""Several models in one run: each searched as if alone, their finalists ranked together."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

import sieve
from sieve.catalog.models import inline_model
from sieve.cli.main import app
from sieve.compare import compare_runs
from sieve.dry import dry_run
from sieve.errors import CatalogError, InvalidInput, ResultError, SpecError
from sieve.explain import explain
from sieve.plan import make_plan
from sieve.results import read_result
from sieve.several import model_labels
from sieve.spec import load_spec

MODELS = ["Qwen/Qwen3-8B", "Qwen/Qwen3-30B-A3B"]
LABELS = ["qwen3-8b", "qwen3-30b-a3b"]
AXES = {
    "tp": [1, 2, 4],
    "ep": {"values": [1, 2], "when": {"model.moe": True}, "otherwise": 1},
    "max_num_seqs": [32, 64],
    "max_num_batched_tokens": [2048],
}
CLOCK = {"elapsed_s"}


def without_clock(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_clock(v) for k, v in value.items() if k not in CLOCK}
    return [without_clock(v) for v in value] if isinstance(value, list) else value


@pytest.fixture(scope="module")
def spec(make_spec) -> dict[str, Any]:
    return make_spec({"grid.axes": AXES}, model=MODELS)


@pytest.fixture(scope="module")
def both(spec, tmp_path_factory) -> Any:
    return sieve.run(spec, out=tmp_path_factory.mktemp("both") / "run")


@pytest.fixture(scope="module")
def alone(spec) -> list[Any]:
    return [sieve.run(spec | {"model": model}) for model in MODELS]


def test_each_model_is_searched_as_if_alone(both, alone) -> None:
    for label, own in zip(LABELS, alone, strict=True):
        folder = both.folder / "models" / label
        assert without_clock(read_result(folder)) == without_clock(own.data)
        assert pl.read_parquet(folder / "candidates.parquet").equals(own.candidates)
        assert pl.read_parquet(folder / "simulations.parquet").equals(own.simulations)
        scripts = {p.relative_to(folder).as_posix(): p.read_text() for p in folder.rglob("*.sh")}
        assert scripts == own.files
        assert scripts


def test_counts_of_all_models_add_up(both, alone) -> None:
    for i, record in enumerate(both.data["stages"]):
        parts = [own.data["stages"][i] for own in alone]
        for name in ("num_in", "num_admitted", "num_rejected"):
            assert record[name] == sum(part[name] for part in parts), (record["name"], name)
        assert record["reasons"] == dict(sum((Counter(p["reasons"]) for p in parts), Counter()))
    assert len(both.candidates) == both.data["stages"][0]["num_in"]
    assert both.candidates["candidate_id"].n_unique() == len(both.candidates)


def test_only_the_model_with_experts_spreads_them(both) -> None:
    spread = both.candidates.filter(pl.col("ep") > 1)
    assert spread["model"].unique().to_list() == [MODELS[1]]


def test_finalists_of_all_models_stand_in_one_order(both, alone) -> None:
    place = {"clears": 0, "point_only": 1, "misses": 2}
    wanted = []
    for label, own in zip(LABELS, alone, strict=True):
        for row in own.data["ranking"]:
            cost = row["usd_per_mtok"]["mid"]
            id_ = f"{row['candidate_id']}.model-{label}"
            wanted.append((place[row["verdict"]], cost, row["num_gpus"], id_))
    ranking = both.data["ranking"]
    assert [row["candidate_id"] for row in ranking] == [key[-1] for key in sorted(wanted)]
    assert {row["model"] for row in ranking} == set(MODELS)
    ranks = [row["rank"] for row in ranking]
    assert ranks == sorted(ranks)
    assert ranks[0] == 1


def test_a_candidate_has_the_numbers_that_it_has_alone(both, alone) -> None:
    metrics = ("ttft_p99_s", "tpot_p99_s", "usd_per_mtok", "slo_attainment")
    found = {row["candidate_id"]: row for row in both.data["ranking"]}
    for label, own in zip(LABELS, alone, strict=True):
        for row in own.data["ranking"]:
            joint = found[f"{row['candidate_id']}.model-{label}"]
            assert [joint[m] for m in metrics] == [row[m] for m in metrics]
            assert joint["verdict"] == row["verdict"]


def test_what_a_model_assumes_names_it_and_what_all_do_stands_once(both, alone) -> None:
    notes = [(a["about"], a["text"]) for a in both.data["assumptions"]]
    assert len(notes) == len(set(notes))
    for i, own in enumerate(alone):
        other = [(a["about"], a["text"]) for a in alone[1 - i].data["assumptions"]]
        for note in own.data["assumptions"]:
            pair = (note["about"], note["text"])
            if pair not in other and MODELS[i] not in note["about"]:
                pair = (f"{note['about']}, {MODELS[i]}", note["text"])
            assert pair in notes


def test_the_first_of_each_model_is_named(both) -> None:
    assert [m["name"] for m in both.data["models"]] == MODELS
    assert [m["folder"] for m in both.data["models"]] == [f"models/{x}" for x in LABELS]
    page = (both.folder / "report.html").read_text()
    assert "The first of each model" in page
    for model in MODELS:
        assert f'name="model" value="{model}"' in page
    leader = both.data["ranking"][0]
    assert both.answer["cheapest"] == leader["candidate_id"]
    assert both.timeline["candidate_id"].unique().to_list() == [leader["candidate_id"]]
    assert (both.folder / "plan" / leader["candidate_id"] / "serve.sh").is_file()


def test_near_misses_of_all_models_the_nearest_first(spec, make_spec) -> None:
    result = sieve.run(spec | {"slo": {"ttft_p99": "2 s", "tpot_p99": "3 ms"}})
    misses = result.data["nearest_misses"]
    assert {m["candidate_id"].rpartition(".model-")[2] for m in misses} == set(LABELS)
    offs = [m["off_by_frac"] for m in misses if m["at"] == misses[0]["at"]]
    assert offs == sorted(offs)
    fixes = [fix["candidate_id"] for m in misses for fix in m["fixes"]]
    assert fixes
    assert all(".model-" in fix for fix in fixes)


def test_resumed_it_is_the_same(both, spec, tmp_path) -> None:
    shutil.copytree(both.folder, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    shutil.rmtree(tmp_path / "run" / "models" / LABELS[1])
    again = sieve.run(spec, out=tmp_path / "run", resume=True)
    assert without_clock(again.data) == without_clock(both.data)
    ends = [
        json.loads(line)
        for line in (again.folder / "models" / LABELS[0] / "events.jsonl").read_text().splitlines()
        if '"end"' in line
    ]
    assert ends[-1]["num_replays_reused"] > 0


def test_a_new_run_leaves_no_model_of_the_old_one(both, spec, tmp_path) -> None:
    shutil.copytree(both.folder, tmp_path / "run")
    sieve.run(spec | {"model": MODELS[:1]}, out=tmp_path / "run")
    assert list((tmp_path / "run" / "models").iterdir()) == []
    assert read_result(tmp_path / "run")["model"]["name"] == MODELS[0]


def test_a_candidate_is_explained_from_the_whole_run(both) -> None:
    life = explain(both.folder, both.data["ranking"][0]["candidate_id"])
    assert life["ranking"]["rank"] == 1
    assert life["candidate"]["model"] == both.data["ranking"][0]["model"]
    with pytest.raises(ResultError, match="no candidate 'x'"):
        explain(both.folder, "x")


def test_a_plan_is_of_one_model(both) -> None:
    with pytest.raises(ResultError, match=r"2 models together; give the folder of one: .*qwen3-8b"):
        make_plan(both.folder)
    made = make_plan(both.folder / "models" / LABELS[0])
    assert any(name.endswith("/serve.sh") for name in made.files)


def test_the_commands_name_the_folder_of_the_model(both, spec, tmp_path) -> None:
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    out = tmp_path / "out"
    shown = CliRunner().invoke(app, ["run", str(tmp_path / "spec.json"), "--out", str(out)])
    leader = both.data["ranking"][0]
    label = LABELS[MODELS.index(leader["model"])]
    assert "By model" in shown.output
    assert f"sieve plan {out}/models/{label}\n" in shown.output
    shown = CliRunner().invoke(app, ["explain", str(out), leader["candidate_id"]])
    assert f"sieve plan {out}/models/{label}\n" in shown.output


def test_a_dry_run_counts_all_models(spec) -> None:
    counts = dry_run(spec)
    parts = [dry_run(spec | {"model": model}) for model in MODELS]
    for name in ("num_candidates", "num_replays"):
        assert counts[name] == sum(part[name] for part in parts)
    admitted = [sum(p["stages"][i]["num_admitted"] for p in parts) for i in range(4)]
    assert [record["num_admitted"] for record in counts["stages"]] == admitted
    num = sum(part["exhaustive"]["num_candidates"] for part in parts)
    assert counts["exhaustive"]["num_candidates"] == num


def test_a_run_that_stops_early_has_the_counts(spec) -> None:
    result = sieve.run(spec, stop_after=3)
    assert result.answer["status"] is None
    assert len(result.data["stages"]) == 3
    assert result.data["ranking"] == []
    assert result.exit_code == 0


def test_a_grid_file_may_name_the_models(spec, tmp_path, make_spec) -> None:
    grid = {"axes": AXES, "model": MODELS}
    result = sieve.run(make_spec({"model": None}) | {"grid": grid}, stop_after=1)
    assert [m["name"] for m in result.data["models"]] == MODELS


def labels(spec, *names: str) -> list[str]:
    facts = {"params": 8e9, "width": 4096, "layers": 32, "heads": 32}
    return model_labels([inline_model(facts | {"name": name}) for name in names], load_spec(spec))


def test_models_of_one_short_name_get_their_whole_name(make_spec) -> None:
    assert labels(make_spec(), "a/X-1", "b/X-1") == ["a-x-1", "b-x-1"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a/X 1", "a/X-1", "b/x"], "a/X 1 and a/X-1 would both be labelled 'a-x-1'; rename one"),
        (["a/X", "__"], "the name '__' needs a letter a-z or a digit, and 60 of them at most"),
        (["a/X", "モデル"], "needs a letter a-z or a digit"),
        (["a/X", "y" * 61], "60 of them at most"),
        (["a/X", "a/X"], "a/X is named twice"),
    ],
)
def test_models_that_cannot_be_told_apart_are_refused(make_spec, names, said) -> None:
    with pytest.raises(SpecError) as caught:
        labels(make_spec(), *names)
    assert said in str(caught.value)
    assert len(caught.value.faults) <= 2


def test_different_models_of_one_name_are_told_from_one_named_twice(spec) -> None:
    facts = {"name": "Qwen/Qwen3-8B", "params": 8e9, "width": 4096, "layers": 32, "heads": 32}
    with pytest.raises(SpecError, match="different models are called Qwen/Qwen3-8B"):
        sieve.run(spec | {"model": ["Qwen/Qwen3-8B", facts]})


@pytest.mark.parametrize(
    ("models", "said"),
    [
        (["Qwen/Qwen3-8B", "Qwen/Qwen3-8B"], "named twice"),
        ([], "needs at least 1 item"),
        (["Qwen/Qwen3-8B"] * 33, "at most 32"),
        (["Qwen/Qwen3-8B", 7], r"model\[1\]: found 7"),
        ([["Qwen/Qwen3-8B"]], r"model\[0\]: found \['Qwen/Qwen3-8B'\]"),
    ],
)
def test_a_faulty_list_of_models_is_refused(spec, models, said) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        sieve.run(spec | {"model": models})
    assert len(caught.value.faults) == 1


def test_an_unknown_model_among_several_is_named(spec, tmp_path) -> None:
    with pytest.raises(CatalogError, match="Qwen3-8C"):
        sieve.run(spec | {"model": ["Qwen/Qwen3-8B", "Qwen/Qwen3-8C"]}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_takes_one_model_says_so(spec) -> None:
    with pytest.raises(InvalidInput, match="--audit looks at the shortlist of one model"):
        sieve.run(spec, audit=True)
    with pytest.raises(SpecError, match="only `sieve run` ranks several"):
        load_spec(spec)


@pytest.mark.parametrize("models", ["x", [1], [{"name": "a"}], [{"name": "a", "folder": 1}], {}])
def test_a_result_with_nonsense_for_models_is_refused(both, tmp_path, models) -> None:
    data = read_result(both.folder) | {"models": models}
    (tmp_path / "result.json").write_text(json.dumps(data))
    with pytest.raises(ResultError, match="'models' is not a list"):
        read_result(tmp_path)


@pytest.mark.parametrize("at", ["models", f"models/{LABELS[1]}"])
def test_nothing_is_written_through_a_link(both, spec, tmp_path, at) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    shutil.copytree(both.folder, run)
    shutil.move(run / at, outside)
    (run / at).symlink_to(outside)
    before = {p: p.read_bytes() for p in outside.rglob("*") if p.is_file()}
    with pytest.raises(ResultError, match="reached through a link"):
        sieve.run(spec, out=run)
    assert {p: p.read_bytes() for p in outside.rglob("*") if p.is_file()} == before


def test_resumed_with_other_models_it_holds_those_alone(both, spec, tmp_path) -> None:
    run = tmp_path / "run"
    shutil.copytree(both.folder, run)
    sieve.run(spec | {"model": [MODELS[1], "Qwen/Qwen3-4B"]}, out=run, resume=True)
    assert sorted(p.name for p in (run / "models").iterdir()) == [LABELS[1], "qwen3-4b"]
    sieve.run(spec | {"model": MODELS[0]}, out=run, resume=True)
    assert list((run / "models").iterdir()) == []


def test_saved_from_python_it_is_the_whole_folder(both, spec, tmp_path) -> None:
    result = sieve.run(spec)
    result.save(tmp_path / "run")
    for path in sorted(both.folder.rglob("*.parquet")):
        assert (tmp_path / "run" / path.relative_to(both.folder)).read_bytes() == path.read_bytes()
    assert make_plan(tmp_path / "run" / "models" / LABELS[0]).files


def test_the_report_names_commands_that_work(both, tmp_path, monkeypatch) -> None:
    run = tmp_path / "run"
    shutil.copytree(both.folder, run)
    leader = both.data["ranking"][0]
    label = LABELS[MODELS.index(leader["model"])]
    own = leader["candidate_id"].removesuffix(f".model-{label}")
    page = (run / "report.html").read_text()
    for line in (
        f"sieve plan models/{label} ",
        f"bash models/{label}/plan/{own}/bench.sh",
        f"bash models/{label}/plan/{own}/serve.sh",
        f"--run models/{label} --candidate {own}\n",
        f"sieve explain . {leader['candidate_id']}<",
    ):
        assert line in page, line
    monkeypatch.chdir(run)
    assert CliRunner().invoke(app, ["plan", f"models/{label}"]).exit_code == 0
    for name in ("serve.sh", "bench.sh"):
        assert (run / "models" / label / "plan" / own / name).is_file()


def test_runs_of_one_and_of_several_models_are_not_compared(both) -> None:
    with pytest.raises(ResultError, match="give the folder of one"):
        compare_runs(both.folder, both.folder / "models" / LABELS[0])
    assert compare_runs(both.folder, both.folder)["same"]


@pytest.mark.parametrize("name", ["\x1b[31mred", "a\nb", "a\u202eb", "x" * 201])
def test_a_name_has_no_control_characters(spec, name) -> None:
    facts = {"name": name, "params": 8e9, "width": 4096, "layers": 32, "heads": 32}
    with pytest.raises(CatalogError, match="at most 200 characters and no control characters"):
        sieve.run(spec | {"model": facts})


def test_a_note_on_the_leader_is_of_the_joint_one(make_spec) -> None:
    spec = make_spec({"traffic.synthetic.arrival": {"poisson_per_s": 100}}, model=MODELS)
    result = sieve.run(spec)
    notes = [a for a in result.data["assumptions"] if "the leader's slow answers" in a["text"]]
    assert len(notes) == 1
    assert notes[0]["about"] == f"traffic, {result.data['ranking'][0]['model']}"


def test_a_result_that_names_a_folder_outside_is_refused(both, tmp_path) -> None:
    run = tmp_path / "run"
    shutil.copytree(both.folder, run)
    data = read_result(run)
    leader = data["ranking"][0]
    for model in data["models"]:
        model["folder"] = "../elsewhere"
    (run / "result.json").write_text(json.dumps(data))
    shown = CliRunner().invoke(app, ["explain", str(run), leader["candidate_id"]])
    assert isinstance(shown.exception, ResultError)
    assert "'models' is not a list" in str(shown.exception)
    assert shown.output == ""


def test_of_large_grids_what_the_folder_does_not_hold_is_computed_anew(
    spec, both, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("sieve.pipeline.WHOLE", 0)
    monkeypatch.setattr("sieve.api.WHOLE", 0)
    monkeypatch.setattr("sieve.blocks.FIRST", 1)
    result = sieve.run(spec, out=tmp_path / "run")
    assert [s["num_in"] for s in result.data["stages"]] == [
        s["num_in"] for s in both.data["stages"]
    ]
    held = set(result.candidates["candidate_id"])
    missing = both.candidates.filter(~pl.col("candidate_id").is_in(list(held)))
    assert missing["model"].n_unique() == 2
    for row in missing.group_by("model").first().iter_rows(named=True):
        life = explain(tmp_path / "run", row["candidate_id"])
        for name in ("candidate_id", "model", "stage", "reason", "observed", "limit"):
            assert life["candidate"][name] == row[name], name

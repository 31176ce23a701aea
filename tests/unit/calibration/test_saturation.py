"""Parameter documents, held-out points, and what is read off them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sieve.calibration import advice
from sieve.calibration.holdout import held_out
from sieve.calibration.saturation import calibrate, model_facts, read_document
from sieve.catalog.models import load_model
from sieve.errors import InvalidInput, ResultError
from sieve.results import to_json


def test_the_document_holds_what_made_the_points(made):
    document = calibrate(made()).document
    assert document["params"]["B0"] == pytest.approx(20.0, rel=1e-6)
    assert document["params"]["gamma"] == pytest.approx(1e-6, rel=1e-6)
    assert document["flags"] == document["warnings"] == []
    assert document["hardware"]["gpu"] == "H100-SXM-80GB"
    data = document["data"]
    assert (data["isl"], data["osl"], data["batch"]) == ([128, 512], [64, 256], [1, 128])
    assert (data["num_observations"], data["num_skipped"]) == (60, 0)


@pytest.mark.parametrize(
    ("rule", "train", "judge"),
    [
        ("model=llama-2-7b", 40, 20),
        ("osl=256", 30, 30),
        ("batch=64..", 36, 24),
        ("batch=..4", 36, 24),
        ("isl=100..200", 30, 30),
        ("same_curve", 36, 24),
    ],
)
def test_held_out_points_judge_the_fit(made, rule, train, judge):
    found = calibrate(made(), holdout=rule)
    held = found.document["holdout"]
    assert (held["num_train"], held["num_validate"]) == (train, judge)
    assert held["mape_percent"] < 1
    assert len(found.train) == train
    assert found.document["error_band"]["basis"] == "held-out points"


@pytest.mark.parametrize(
    "rule", ["osl=7", "isl=", "other", "batch=a..b", "model=none/such", "model_transfer", "x=1"]
)
def test_other_holdouts_are_refused(made, rule):
    with pytest.raises(InvalidInput):
        calibrate(made(), holdout=rule)


def test_same_curve_leaves_short_and_double_points_out(made):
    rows = list(made(names=["facebook/opt-1.3b"], isls=(128,), osls=(64,)).rows)
    short = replace(rows[0], osl=99)
    kept, train, validate, dropped = held_out([*rows, rows[0], short], "same_curve")
    assert (len(kept), len(train), len(validate)) == (5, 3, 2)
    assert sum(dropped.values()) == 2


def test_other_gpus_engines_and_models_are_left_out(made):
    found = made()
    rows = [
        *found.rows,
        replace(found.rows[0], gpu="A100-SXM-80GB"),
        replace(found.rows[0], engine="trtllm"),
        replace(found.rows[0], model="none/such"),
        replace(found.rows[0], model="mistralai/Mixtral-8x7B-v0.1"),
        replace(found.rows[0], isl=4000),
    ]
    document = calibrate(replace(found, rows=tuple(rows)), gpu="h100-sxm", engine="vLLM").document
    assert document["data"]["num_observations"] == 60
    reasons = " ".join(document["data"]["skipped"])
    for words in ("another GPU", "another engine", "unknown model", "experts", "context"):
        assert words in reasons


def test_the_gpu_must_be_known(made):
    found = made()
    mixed = replace(found, rows=(*found.rows, replace(found.rows[0], gpu="A100-SXM-80GB")))
    for points in (mixed, made(gpu="")):
        with pytest.raises(InvalidInput, match="--gpu"):
            calibrate(points)
    assert calibrate(made(gpu=""), gpu="H100-SXM-80GB").document["data"]["num_observations"] == 60


def test_no_usable_point_says_why(made):
    with pytest.raises(InvalidInput, match="another GPU"):
        calibrate(made(), gpu="A100-SXM-80GB")


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ({"names": ["facebook/opt-1.3b"]}, "alpha and gamma"),
        ({"isls": (128,)}, "one input length"),
        ({"osls": (64,)}, "one output length"),
        ({"batches": (8,)}, "one batch size"),
        ({"names": ["facebook/opt-1.3b"], "isls": (128,), "osls": (64,)}, "slope and intercept"),
    ],
)
def test_what_the_data_cannot_tell_is_said(made, points, words):
    assert any(words in text for text in calibrate(made(**points)).document["warnings"])


def test_mixed_engines_are_said(made):
    found = made()
    mixed = (*found.rows, replace(found.rows[0], engine="sglang"))
    warnings = calibrate(replace(found, rows=mixed)).document["warnings"]
    assert "engines are mixed: sglang, vllm" in warnings


def test_facts_of_models():
    llama = model_facts(load_model("meta-llama/Llama-2-7b-hf"))
    assert (llama["L"], llama["D"], llama["ffn_projections"]) == (32, 4096, 3)
    assert llama["r_ff"] == pytest.approx(11008 / 4096)
    assert "head_dim" not in llama
    assert model_facts(load_model("facebook/opt-1.3b"))["ffn_projections"] == 2
    assert model_facts(load_model("Qwen/Qwen3-0.6B"))["head_dim"] == 128
    assert model_facts(load_model("Qwen/Qwen3-8B"), "fp8_e4m3")["b_kv"] == 1
    with pytest.raises(InvalidInput, match="experts"):
        model_facts(load_model("Qwen/Qwen3-30B-A3B"))


@pytest.fixture
def document(made):
    return calibrate(made()).document


def test_a_document_comes_back_from_its_file(document, tmp_path):
    path = tmp_path / "params.json"
    path.write_text(to_json(document))
    assert read_document(path) == json.loads(to_json(document))


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(format="other"),
        lambda d: d.update(version=2),
        lambda d: d["params"].pop("eta_c"),
        lambda d: d["params"].update(eta_m=-1),
        lambda d: d.pop("hardware"),
        lambda d: d["error_band"].update(e_under=1.0),
        lambda d: d["error_band"].update(e_over="much"),
        lambda d: d["data"].update(isl=[1]),
        lambda d: d["data"].update(models=3),
    ],
)
def test_damaged_documents_are_refused(document, tmp_path, change):
    change(document)
    path = tmp_path / "params.json"
    path.write_text(to_json(document))
    with pytest.raises(ResultError, match=r"params\.json"):
        read_document(path)


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_other_files_are_no_documents(tmp_path, text):
    path = tmp_path / "params.json"
    path.write_text(text)
    with pytest.raises(ResultError, match=r"params\.json"):
        read_document(path)
    with pytest.raises(ResultError, match="cannot be read"):
        read_document(tmp_path / "none.json")


def test_predictions_lie_between_their_ends(document):
    document["error_band"].update(e_over=0.25, e_under=0.2)
    got = advice.predict(
        document, "facebook/opt-1.3b", gpu=None, isl=128, osl=64, batches=[1.0, 16.0]
    )
    assert got["warnings"] == []
    for row in got["predictions"]:
        assert row["throughput_low"] == pytest.approx(row["throughput"] / 1.25)
        assert row["throughput_high"] == pytest.approx(row["throughput"] / 0.8)
        assert row["e2e_low"] == pytest.approx(row["e2e"] * 0.8)
        assert row["e2e_high"] == pytest.approx(row["e2e"] * 1.25)


def test_predictions_off_the_data_say_so(document):
    got = advice.predict(
        document, "facebook/opt-6.7b", gpu="A100-SXM-80GB", isl=2000, osl=1000, batches=[999.0]
    )
    text = " ".join(got["warnings"])
    for words in ("not on A100-SXM-80GB", "opt-6.7b is not", "input length", "output", "batch 999"):
        assert words in text


def advise(document, **changes):
    given = {"gpu": None, "isl": 128, "osl": 256, "slo_s": None, "slo_factor": 2.0,
             "epsilon": 0.1, "b_max": 256}  # fmt: skip
    return advice.advise(document, "facebook/opt-1.3b", **{**given, **changes})


def test_advice_names_what_binds(document):
    loose = advise(document, slo_s=1e4, epsilon=0.0)
    assert (loose["answer"]["B_cap"], loose["answer"]["limit"]) == (256, "candidates")
    assert loose["report"]["throughput_ratio"] == 1
    efficient = advise(document, slo_s=1e4, epsilon=0.5)
    assert efficient["answer"]["limit"] == "efficiency"
    tight = advise(document, slo_s=loose["curve"][3]["e2e"])
    assert (tight["answer"]["B_cap"], tight["answer"]["limit"]) == (8, "slo")
    assert tight["answer"]["throughput"] < tight["throughput_limit"]
    none = advise(document, slo_s=1e-4)
    assert none["answer"]["B_cap"] is none["report"] is None
    assert "single request" in none["reason"]


def test_one_batch_has_no_knee(document):
    assert advise(document, b_max=1)["knee_B"] is None

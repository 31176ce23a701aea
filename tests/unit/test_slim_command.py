"""`sieve slim fit`, `predict` and `advise` from files to files."""

from __future__ import annotations

import itertools
import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sieve.catalog.models import load_model
from sieve.cli.slim import NO_BATCH, app
from sieve.errors import InvalidInput, ResultError

NAMES = ("facebook/opt-1.3b", "facebook/opt-2.7b", "meta-llama/Llama-2-7b-hf")


def seconds(name: str, isl: int, osl: int, batch: int) -> float:
    """Return a batch's time as some engine might have it: weights, cache, prompts and a start."""
    arch = load_model(name)
    weights_s = 2 * arch.params / 2e12
    cache_s = 4 * arch.num_hidden_layers * arch.hidden_size * batch * (isl + osl / 2) / 2e12
    return 0.05 + batch * isl * 2 * arch.params / 4e14 + osl * (weights_s + cache_s + 2e-4)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    lines = ["model,gpu,num_gpus,isl_mean,osl_mean,concurrency,e2e_mean_s,notes"]
    for name, isl, osl, batch in itertools.product(
        NAMES, (128, 512), (64, 256), (1, 4, 16, 64, 128)
    ):
        taken = seconds(name, isl, osl, batch)
        lines.append(f"{name},H100-SXM-80GB,1,{isl},{osl},{batch},{taken},<b>&")
    path = tmp_path / "sweep.csv"
    path.write_text("\n".join(lines) + "\nm,H100-SXM-80GB,8,1,1,1,1,\n")
    return path


@pytest.fixture
def params(sweep: Path, tmp_path: Path) -> Path:
    out = tmp_path / "params.json"
    call("fit", sweep, "--variant", "dense_offset", "--out", out)
    return out


def call(*args: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [str(arg) for arg in args])
    assert done.exit_code == code, f"{done.output} {done.exception!r}"
    return done.output


def refused(*args: object) -> Exception:
    done = CliRunner().invoke(app, [str(arg) for arg in args])
    assert isinstance(done.exception, InvalidInput | ResultError), done.output
    return done.exception


def test_fit_prints_parameters_errors_and_what_was_left_out(sweep, tmp_path):
    plot = tmp_path / "fit.html"
    text = call("fit", sweep, "--holdout", "batch=128", "--variant", "dense_offset", "--plot", plot)
    for words in ("eta_c", "held-out points (batch=128)", "dense_offset", "Left out 1", str(plot)):
        assert words in text.replace("\n", "")
    page = plot.read_text()
    assert page.count("<svg") == 24
    assert "<script" not in page
    assert "knee" in page


def test_both_forms_describe_an_affine_engine(sweep):
    errors = {
        form: json.loads(call("fit", sweep, "--variant", form, "--json"))["mape_percent"]
        for form in ("printed", "dense_offset")
    }
    assert errors["dense_offset"] < 3
    assert errors["dense_offset"] < errors["printed"]


def test_fit_to_json_is_the_file(sweep, tmp_path):
    out = tmp_path / "params.json"
    text = call("fit", sweep, "--out", out, "--json")
    assert json.loads(text) == json.loads(out.read_text())


def test_predict(params):
    text = call("predict", "llama-2-7b", "--params", params, "--isl", 128, "--osl", 64,
                "--batch", "16,1")  # fmt: skip
    for words in ("estimate", "Assumed", "F_max", "b_kv", "dense_offset"):
        assert words in text
    result = json.loads(
        call("predict", "llama-2-7b", "--params", params, "--isl", 128, "--osl", 64,
             "--batch", "16,1", "--json")
    )  # fmt: skip
    assert [row["batch"] for row in result["predictions"]] == [1, 16]
    measured = 16 * 192 / seconds("meta-llama/Llama-2-7b-hf", 128, 64, 16)
    assert result["predictions"][1]["throughput"] == pytest.approx(measured, rel=0.1)


def test_advise(params, tmp_path):
    plot = tmp_path / "advice.html"
    args = ("advise", "facebook/opt-1.3b", "--params", params, "--isl", 128, "--osl", 256)
    text = call(*args, "--slo", "2 s", "--plot", plot)
    for words in ("B_cap", "knee", "efficiency", "Assumed", "estimate"):
        assert words in text
    page = plot.read_text()
    for words in ("SLO 2.00 s", "B_cap", "knee", "Assumed"):
        assert words in page
    default = json.loads(call(*args, "--json"))
    assert default == json.loads(call(*args, "--slo-factor", 2, "--json"))
    assert default["answer"]["B_cap"] >= 1


def test_advise_without_a_batch_has_its_own_code(params, tmp_path):
    plot = tmp_path / "none.html"
    args = ("advise", "facebook/opt-1.3b", "--params", params, "--isl", 128, "--osl", 256)
    text = call(*args, "--slo", "1 ms", "--plot", plot, code=NO_BATCH)
    assert "no_feasible_batch" in text
    following = shlex.split(text.rstrip().splitlines()[-1].removeprefix("Next"))
    assert following[:3] == ["sieve", "slim", "advise"]
    assert json.loads(call(*following[2:], "--json"))["answer"]["B_cap"] >= 1
    assert json.loads(call(*args, "--slo", "1 ms", "--json", code=NO_BATCH))["answer"] == {
        "B_cap": None, "throughput": None, "e2e": None, "efficiency": None, "slo_s": 0.001,
        "state": "no_feasible_batch", "limit": "slo",
    }  # fmt: skip
    assert "B_cap none" in plot.read_text()


def test_bad_input_is_refused(sweep, params, tmp_path):
    lengths = ("--isl", 128, "--osl", 64)
    refused("fit", sweep, "--variant", "other")
    refused("fit", sweep, "--holdout", "other")
    refused("fit", tmp_path / "none.csv")
    refused("fit", sweep, "--out", tmp_path / "none" / "params.json")
    refused("predict", NAMES[0], "--params", params, *lengths, "--batch", "1,x")
    refused("predict", NAMES[0], "--params", params, *lengths, "--batch", "0")
    refused("predict", NAMES[0], "--params", sweep, *lengths, "--batch", "1")
    refused("predict", "Qwen/Qwen3-30B-A3B", "--params", params, *lengths, "--batch", "1")
    refused("advise", NAMES[0], "--params", params, *lengths, "--slo", "1 GB")
    refused("advise", NAMES[0], "--params", params, *lengths, "--slo", 1, "--slo-factor", 2)
    refused("advise", NAMES[0], "--params", params, *lengths, "--b-max", 0)

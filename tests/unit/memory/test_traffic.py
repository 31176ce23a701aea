"""How many requests of given mean lengths a deployment holds at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sieve.cli.fit import fit as fit_command
from sieve.errors import InvalidInput
from sieve.fit_of import configure, fit

APP = typer.Typer()
APP.command()(fit_command)


def held(isl: float, osl: float, **options: Any) -> Any:
    found = fit(configure("Qwen/Qwen3-8B", "H100-SXM-80GB", **options), isl=isl, osl=osl)
    assert found.traffic is not None
    return found, found.traffic


def test_the_cache_limits_long_requests() -> None:
    found, traffic = held(8000, 1600)
    assert traffic.mean_tokens == 8800
    assert traffic.blocks_per_request == 550
    assert traffic.by_cache == pytest.approx(found.num_blocks / 550)
    assert traffic.by_cache_at_end == pytest.approx(found.num_blocks / 600)
    assert (traffic.expected, traffic.limited_by) == (traffic.by_cache, "cache")
    # Requests on this traffic are shorter than those that the engine's line is about.
    assert traffic.expected > found.concurrency_engine


def test_the_scheduler_limits_short_ones() -> None:
    _, traffic = held(100, 100, max_num_seqs=64)
    assert (traffic.expected, traffic.limited_by) == (64, "max_num_seqs")
    assert traffic.by_cache > 64


def test_full_length_is_the_figure_of_the_log() -> None:
    found, traffic = held(4095, 1, max_model_len=4096)
    assert traffic.by_cache_at_end == pytest.approx(found.concurrency_engine, rel=1e-3)


@pytest.mark.parametrize(
    ("isl", "osl", "message"),
    [
        (0, 10, "isl is 0"),
        (10, float("nan"), "osl is nan"),
        (40_000, 2000, "max_model_len 40960 refuses such requests"),
    ],
)
def test_lengths_that_cannot_be(isl: float, osl: float, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        held(isl, osl)


def test_the_command_names_three_concurrencies() -> None:
    words = ["qwen3-8b", "--gpu", "h100-sxm", "--isl", "8000", "--osl", "1600"]
    out = json.loads(CliRunner().invoke(APP, [*words, "--json"]).stdout)
    assert set(out["concurrency"]) == {"by_engine", "by_division", "by_scheduler", "on_traffic"}
    assert out["concurrency"]["on_traffic"] == out["traffic"]["expected"]
    shown = CliRunner().invoke(APP, words).stdout
    assert "on traffic of 8,000 + 1,600 tokens" in shown
    lone = CliRunner().invoke(APP, words[:-2])
    assert isinstance(lone.exception, InvalidInput)

"""Conservation laws of a replay, for `SIEVE_CHECK=1`: requests, tokens, blocks, time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from sieve.arrays import Requests, SimResult
from sieve.invariants import hold
from sieve.sim.traffic_input import ReplaySettings


def check_replay(
    requests: Requests, result: SimResult, settings: ReplaySettings, replicas: int
) -> None:
    """Hold a finished or broken-off replay to what no scheduler can do.

    Raises:
        AssertionError: a law is broken; names it.
    """
    _requests(requests, result)
    _order(requests, result)
    _limits(result, settings)
    if result.status == "":
        _tokens(requests, result)
        _time(result, settings, replicas)


def _requests(requests: Requests, result: SimResult) -> None:
    """Every request is there once, and a replay without a reason to stop answered them all."""
    for name in ("arrival_s", "scheduled_s", "first_token_s", "finish_s", "cached_tokens"):
        found = len(getattr(result, name))
        hold(found == len(requests), f"replay: {found} values of {name}, {len(requests)} requests")
    if result.status == "":
        lost = int(np.isnan(result.finish_s).sum())
        hold(lost == 0, f"replay: {lost} requests of a whole replay were never answered")


def _order(requests: Requests, result: SimResult) -> None:
    """A request is sent, scheduled, gives its first token and its last, in this order."""
    times = (result.arrival_s, result.scheduled_s, result.first_token_s, result.finish_s)
    for earlier, later in pairwise(times):
        broken = int((later < earlier).sum())  # a comparison with nan is false
        hold(broken == 0, f"replay: {broken} requests run backwards in time")
    single = requests.output_tokens == 1
    apart = single & (result.finish_s > result.first_token_s)
    hold(not apart.any(), "replay: an answer of one token ends after its first token")


def _limits(result: SimResult, settings: ReplaySettings) -> None:
    """No iteration and no cache holds more than it may."""
    for name, found, most in (
        ("blocks", result.peak_blocks, settings.num_gpu_blocks),
        ("requests in an iteration", result.peak_batch, settings.max_num_seqs),
        ("tokens in an iteration", result.peak_tokens, settings.max_num_batched_tokens),
        ("running requests", result.peak_running, settings.max_num_seqs),
    ):
        hold(found <= most, f"replay: {found} {name}, at most {most} are allowed")


def _tokens(requests: Requests, result: SimResult) -> None:
    """Each answer has its length, and no prompt came from the cache in whole."""
    gaps, expected = int(result.gaps.sum()), int((requests.output_tokens - 1).sum())
    hold(gaps == expected, f"replay: {gaps} gaps between tokens, the answers have {expected}")
    whole = result.cached_tokens >= requests.input_tokens
    hold(not whole.any(), "replay: a prompt came from the cache without its last token")
    least = int(requests.output_tokens.sum())
    hold(
        result.num_request_steps >= least,
        f"replay: {result.num_request_steps} request-iterations for {least} answered tokens",
    )


def _time(result: SimResult, settings: ReplaySettings, replicas: int) -> None:
    """No engine worked longer than the replay lasted, in any of its stages."""
    span = float(np.nanmax(result.finish_s) - np.nanmin(result.arrival_s))
    hold(abs(span - result.makespan_s) <= 1e-6 * max(span, 1.0), "replay: another makespan")
    most = result.makespan_s * replicas * settings.pipeline_stages
    worked = float(result.component_s.sum())
    rounding = 1e-9 * (result.num_steps + 1)  # the clock counts whole nanoseconds
    hold(worked <= most + rounding + 1e-9 * most, f"replay: {worked:g} s of work in {most:g} s")

"""From traffic to the replay: shared keys, sessions, replicas, queue disciplines, tables."""

from __future__ import annotations

import numpy as np
import pytest

from sieve.arrays import PrefixBlocks, Requests
from sieve.errors import InvalidInput
from sieve.sim._kernels import engine, layout
from sieve.sim.engine import step_arguments
from sieve.sim.fleet import static_lanes
from sieve.sim.metrics import after_warm_up
from sieve.sim.replay import STOPPED_EARLY, ReplaySettings, simulate
from sieve.sim.static_batching import simulate_static
from sieve.sim.tables import requests_table, steps_table, windows_table
from sieve.sim.traffic_input import (
    bucket_of,
    clock_of,
    prefix_keys,
    request_input,
    settings_array,
)
from sieve.spec import LatencyLimits


def prefix_of(prompts, chains, block_tokens):
    count = [len(chain) for chain in chains]
    start = np.concatenate(([0], np.cumsum(count)))
    ids = np.array([i for chain in chains for i in chain])
    return PrefixBlocks(block_tokens, start, ids, np.array(prompts))


def keys_of(shared):
    return [
        shared.keys[s : s + c].tolist() for s, c in zip(shared.start, shared.count, strict=True)
    ]


def test_blocks_of_the_engine_inside_blocks_of_the_trace():
    # Two prompts share 8 tokens in blocks of 4; the engine's blocks hold 2.
    prefix = prefix_of([12, 10], [[0, 1, 2], [0, 1, 3]], 4)
    first, second = keys_of(prefix_keys(prefix, 2))
    assert first == second
    assert len(set(first)) == 4


def test_a_block_is_shared_only_if_all_of_it_is():
    # The engine's blocks of 6 tokens: the second, tokens 6 to 11, is beyond the shared 8.
    prefix = prefix_of([12, 12], [[0, 1, 2], [0, 1, 3]], 4)
    first, second = keys_of(prefix_keys(prefix, 6))
    assert first == second
    assert len(first) == 1
    # Blocks larger than those of the trace.
    prefix = prefix_of([40, 40], [list(range(10)), [*range(8), 20, 21]], 4)
    first, second = keys_of(prefix_keys(prefix, 16))
    assert first == second
    assert len(set(first)) == 2


def test_a_partly_filled_last_block_counts_as_far_as_it_is_filled():
    prefix = prefix_of([8, 6], [[0, 1], [0, 1]], 4)
    first, second = keys_of(prefix_keys(prefix, 2))
    assert len(first) == 4
    assert second == first[:3]


def settings_(**keys):
    given = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "num_gpu_blocks": 200}
    return ReplaySettings(**(given | {"block_size": 4} | keys))


def test_what_even_an_endless_cache_computes():
    prefix = prefix_of([12, 10, 8, 4], [[0, 1, 2], [0, 1, 3], [0, 1], [4]], 4)
    # The second shares 8 of 10 tokens; the third all 8, of which one is computed all the same.
    assert prefix.fewest_computed().tolist() == [12, 2, 1, 4]


def test_a_shared_prefix_is_computed_once(tables):
    """16 shared tokens, then 8 of its own each; one second a step, one a thousand prompt tokens."""
    prefix = prefix_of([24, 24], [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 6, 7]], 4)
    requests = Requests(np.array([0.0, 10.0]), np.array([24, 24]), np.array([1, 1]), prefix=prefix)
    table = tables.affine(base=1.0)
    for macro in (True, False):
        cached = simulate(requests, table, settings_(prefix_caching=True, macro_steps=macro))
        assert cached.cached_tokens.tolist() == [0, 16]
        plain = simulate(requests, table, settings_(macro_steps=macro))
        assert plain.cached_tokens.tolist() == [0, 0]


def test_a_turn_arrives_after_the_answer_before(tables):
    requests = Requests(
        np.zeros(3), np.full(3, 4), np.array([3, 2, 1]),
        previous=np.array([-1, 0, 1]), delay_s=np.array([0.0, 5.0, 0.5]),
    )  # fmt: skip
    result = simulate(requests, tables.affine(base=1.0), settings_())
    # Three steps, five seconds of thought, two steps, half a second, one step.
    assert result.arrival_s.tolist() == [0.0, 8.0, 10.5]
    assert result.finish_s.tolist() == [3.0, 10.0, 11.5]


def test_sessions_stay_on_one_replica(tables):
    requests = Requests(
        np.array([0.0, 0.0, 1.0, 1.0, 2.0]), np.full(5, 4), np.full(5, 2),
        previous=np.array([-1, 0, -1, 2, -1]), delay_s=np.full(5, 0.1),
    )  # fmt: skip
    assert static_lanes(requests, 2, "round_robin", 0).tolist() == [0, 0, 1, 1, 0]
    both = simulate(requests, tables.affine(base=1.0), settings_(), replicas=2)
    assert not np.isnan(both.finish_s).any()


def test_a_closed_loop_has_no_sessions(tables):
    requests = Requests(
        np.zeros(2), np.full(2, 4), np.full(2, 2), closed_loop_users=1,
        previous=np.array([-1, 0]), delay_s=np.zeros(2),
    )  # fmt: skip
    with pytest.raises(InvalidInput, match="no sessions"):
        simulate(requests, tables.affine(base=1.0), settings_())


def test_a_pipelined_token_goes_through_all_stages(tables):
    """Four stages of a quarter second: a lone request gets a token a second, ahead or not."""
    requests = Requests(np.zeros(1), np.array([4]), np.array([6]))
    table = tables.affine(base=1.0, pp=4)
    for ahead in (False, True):
        limits = settings_(pipeline_stages=4, async_scheduling=ahead)
        assert simulate(requests, table, limits).makespan_s == pytest.approx(6.0)


def test_scheduling_ahead_hides_nothing_of_the_device_and_frees_a_step_later(tables):
    requests = Requests(np.array([0.0, 0.5]), np.array([4, 4]), np.array([2, 2]))
    table = tables.affine(base=1.0)
    one = simulate(requests, table, settings_())
    ahead = simulate(requests, table, settings_(async_scheduling=True))
    assert one.finish_s.tolist() == [2.0, 3.0]
    # The second arrives when the step from 1 to 2 is already scheduled.
    assert ahead.finish_s.tolist() == [2.0, 4.0]


def test_shortest_first_overtakes_and_quotas_keep_room(tables):
    table = tables.affine(base=1.0)
    requests = Requests(np.zeros(3), np.array([4, 4, 4]), np.array([9, 5, 1]))
    one_seat = {"max_num_seqs": 1}
    in_order = simulate(requests, table, settings_(**one_seat))
    assert in_order.finish_s.tolist() == [9.0, 14.0, 15.0]
    shortest = simulate(requests, table, settings_(discipline="shortest_first", **one_seat))
    assert shortest.finish_s.tolist() == [15.0, 6.0, 1.0]


def test_a_bucket_over_its_quota_waits_while_others_are_there(tables):
    """The last bucket has a fifth of 3,000 blocks of 4 tokens: one request of 2,100, not two."""
    table = tables.affine(base=1.0)
    lengths = np.array([2100, 2100, 100])
    requests = Requests(np.zeros(3), lengths, np.array([2, 2, 2]))
    limits = {"num_gpu_blocks": 3000, "max_num_batched_tokens": 2100, "max_num_seqs": 2}
    result = simulate(requests, table, settings_(discipline="buckets", **limits))
    # Short first, with a long one beside it; the other long one is past the quota, then spills.
    assert result.scheduled_s[2] == 0.0
    assert bucket_of(lengths + 2).tolist() == [2, 2, 0]
    assert not np.isnan(result.finish_s).any()
    plain = simulate(requests, table, settings_(**limits))
    assert plain.scheduled_s[2] > result.scheduled_s[2]


def test_a_queue_that_waits_too_long_stops_the_replay(tables):
    requests = Requests(np.arange(50) * 0.1, np.full(50, 4), np.full(50, 5))
    limits = {"max_num_seqs": 1, "max_wait_s": 10.0}
    for macro in (True, False):
        result = simulate(requests, tables.affine(base=1.0), settings_(macro_steps=macro, **limits))
        assert result.status == STOPPED_EARLY
        assert np.isnan(result.finish_s).any()


def test_static_batching_by_hand(tables):
    """Two seats: prompts 4 and 2 padded to 4, answers 1 and 3; then the late one alone."""
    requests = Requests(np.array([0.0, 0.0, 0.5]), np.array([4, 2, 4]), np.array([1, 3, 2]))
    table = tables.affine(base=1.0, per_token=0.125)
    got = simulate_static(requests, table, settings_(max_num_seqs=2))
    # Prefill 1 + 8/8 s, two steps of 1 + 2/8 s; then prefill 1 + 4/8 and one step of 1 + 1/8.
    assert got.first_token_s.tolist() == [2.0, 2.0, 6.0]
    assert got.finish_s.tolist() == [4.5, 4.5, 7.125]
    assert got.num_batches == 2
    assert got.padding_share == pytest.approx(2 / 12)
    assert got.slot_share == pytest.approx(6 / 8)


def test_static_batching_refuses_what_it_has_no_rule_for(tables):
    requests = Requests(np.zeros(2), np.full(2, 4), np.full(2, 2), closed_loop_users=1)
    with pytest.raises(InvalidInput, match="open-loop"):
        simulate_static(requests, tables.affine(base=1.0), settings_())


def test_the_iterations_add_up(tables):
    rng = np.random.default_rng(1)
    n = 60
    requests = Requests(
        np.cumsum(rng.exponential(0.5, n)), rng.integers(1, 90, n), rng.integers(1, 30, n)
    )
    table = tables.affine(base=0.1, per_token=0.001, per_context=1e-5)
    for replicas in (1, 3):
        for ahead in (False, True):
            limits = settings_(async_scheduling=ahead)
            result = simulate(requests, table, limits, replicas, record_steps=True)
            steps = steps_table(result)
            assert len(steps) == result.num_steps
            assert steps["replica"].n_unique() == replicas
            work = (steps["prefill_tokens"] + steps["decode_tokens"]).sum()
            # Every prompt once, every answer token but the last once.
            assert work == int((requests.input_tokens + requests.output_tokens - 1).sum())
            rows = (steps["num_prefills"] + steps["decode_seqs"]).sum()
            assert rows == result.num_request_steps
            assert (steps["end_s"] > steps["start_s"]).all()
            assert (steps["start_s"] >= steps["call_s"]).all()
            seconds = (steps["end_s"] - steps["start_s"]).sum()
            assert seconds == pytest.approx(result.component_s.sum(), rel=1e-6)
            silent = simulate(requests, table, limits, replicas)
            assert silent.finish_s.tobytes() == result.finish_s.tobytes()


def test_windows_and_requests_hold_every_request(tables):
    requests = Requests(np.array([0.0, 1.0, 2.5, 9.0]), np.full(4, 4), np.array([1, 2, 1, 1]))
    result = simulate(requests, tables.affine(base=1.0), settings_())
    limits = LatencyLimits(ttft_s=1.5)
    table = windows_table(requests, result, limits, 2.0)
    assert table["start_s"].to_list() == [0.0, 2.0, 4.0, 8.0, 10.0][: len(table)]
    assert table["num_requests"].sum() == 4
    # 2 tokens by second 2 of the first window... counted where the answers finish.
    assert (table["output_tokens_per_s"] * 2.0).sum() == pytest.approx(5)
    rows = requests_table(requests, result)
    assert rows["ttft_s"].to_list() == pytest.approx(
        (result.first_token_s - result.arrival_s).tolist()
    )
    assert rows["tpot_s"].null_count() == 3


def test_a_warm_up_is_replayed_and_not_counted(tables):
    requests = Requests(np.array([0.0, 1.0, 8.0]), np.full(3, 4), np.full(3, 2))
    result = simulate(requests, tables.affine(base=1.0), settings_())
    counted, kept = after_warm_up(requests, result, 5.0)
    assert len(counted) == 1
    assert kept.makespan_s == pytest.approx(2.0)
    with pytest.raises(InvalidInput, match="leaves no request"):
        after_warm_up(requests, result, 50.0)


def test_every_group_takes_its_own_blocks(tables):
    """40 tokens in blocks of 4 and two groups: 20 blocks; with a third group of blocks of 8: 25."""
    table = tables.affine(base=1.0)
    requests = Requests(np.zeros(1), np.array([30]), np.array([10]))
    two, three = ((0, 4, 0), (0, 4, 0)), ((0, 4, 0), (0, 4, 0), (0, 8, 0))
    for groups, needed in ((two, 20), (three, 25)):
        fits = simulate(requests, table, settings_(groups=groups, num_gpu_blocks=needed))
        assert fits.status == ""
        # The last token is never cached, but its block's size makes no difference here.
        assert fits.peak_blocks == needed
        short = simulate(requests, table, settings_(groups=groups, num_gpu_blocks=needed - 1))
        assert short.status == "request_exceeds_cache"


def test_a_window_gives_blocks_back(tables):
    """A window of 8 tokens over 4-token blocks, one decode at a time: it holds 3 blocks at most."""
    table = tables.affine(base=1.0)
    requests = Requests(np.zeros(1), np.array([4]), np.array([60]))
    limits = settings_(groups=((0, 4, 0), (8, 4, 0)), max_num_batched_tokens=8, num_gpu_blocks=40)
    result = simulate(requests, table, limits)
    assert result.status == ""
    assert result.peak_blocks == 16 + 3
    plain = simulate(requests, table, settings_(groups=((0, 4, 0),) * 2, num_gpu_blocks=40))
    assert plain.peak_blocks == 16 + 16


def test_states_are_held_from_the_first_token_to_the_last(tables):
    """Three blocks of state a request: 12 blocks seat three of 4 tokens, not four."""
    table = tables.affine(base=1.0)
    requests = Requests(np.zeros(4), np.full(4, 3), np.ones(4, int))
    limits = settings_(groups=((0, 4, 0), (0, 4, 3)), num_gpu_blocks=12)
    result = simulate(requests, table, limits)
    assert result.scheduled_s.tolist() == [0.0, 0.0, 0.0, 1.0]
    assert result.peak_blocks == 12


def test_prefixes_are_not_shared_among_kinds_whose_blocks_differ(tables):
    prefix = prefix_of([24, 24], [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]], 4)
    requests = Requests(np.array([0.0, 10.0]), np.array([24, 24]), np.array([1, 1]), prefix=prefix)
    table = tables.affine(base=1.0)
    alike = settings_(prefix_caching=True, groups=((0, 4, 0), (0, 4, 0)))
    assert simulate(requests, table, alike).cached_tokens.tolist() == [0, 20]
    for other in ((0, 8, 0), (0, 4, 2)):
        limits = settings_(prefix_caching=True, groups=((0, 4, 0), other))
        assert simulate(requests, table, limits).cached_tokens.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arrival_s": np.array([0.0, np.nan])}, "request 1: nan is its arrival"),
        ({"arrival_s": np.array([3.0, 1.0])}, "request 1: 1.0 is its arrival, earlier"),
        ({"arrival_s": np.array([-1.0, 1.0])}, "request 0: -1.0 is its arrival, expected 0"),
        ({"input_tokens": np.array([0, 4])}, "request 0: 0 is its prompt tokens"),
        ({"output_tokens": np.array([4, 0])}, "request 1: 0 is its answer tokens"),
        ({"output_tokens": np.array([4])}, "differ in length"),
        ({"previous": np.array([1, -1])}, "request 0: 1 is its previous turn"),
        (
            {"previous": np.array([-1, 0]), "delay_s": np.array([0.0, -2.0])},
            "request 1: -2.0 is its delay",
        ),
    ],
)
def test_traffic_that_no_reader_makes_is_refused(tables, change, message):
    given = {
        "arrival_s": np.zeros(2), "input_tokens": np.full(2, 4), "output_tokens": np.full(2, 2)
    }  # fmt: skip
    with pytest.raises(InvalidInput, match=message):
        simulate(Requests(**(given | change)), tables.affine(base=1.0), settings_())


@pytest.mark.parametrize("blocks", [60, 400])
def test_the_prefix_cache_alone_changes_nothing_but_what_is_preempted(tables, blocks):
    """The quick ways of pipelines must equal the step kernel with the cache on."""
    rng = np.random.default_rng(2)
    n = 80
    requests = Requests(
        np.cumsum(rng.exponential(0.2, n)), rng.integers(1, 90, n), rng.integers(1, 40, n)
    )
    table = tables.affine(base=0.1, per_token=0.001, pp=2)
    limits = settings_(pipeline_stages=2, prefix_caching=True, num_gpu_blocks=blocks)
    got = simulate(requests, table, limits)
    longest = int((requests.input_tokens + requests.output_tokens).max())
    data = request_input(
        settings_array(limits, table, 0, longest),
        np.rint(requests.arrival_s * 1e9).astype(np.int64),
        requests.input_tokens,
        requests.output_tokens,
        clock=clock_of(table, limits.max_num_seqs, longest),
    )
    results, counters, *_ = engine.replay(*step_arguments(data))
    assert (counters[layout.PREEMPTED] > 0) == (blocks == 60)
    assert np.array_equal(results[:, layout.FINISH_NS] / 1e9, got.finish_s)
    assert np.array_equal(results[:, layout.PREEMPTIONS], got.num_preemptions)
    assert int(counters[layout.PEAK_BLOCKS]) == got.peak_blocks

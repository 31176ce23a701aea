"""What a summary keeps of shared prefixes and sessions, against plain loops; and what it draws."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sieve.arrays import PrefixBlocks, Requests
from sieve.traces.draw_reuse import along, draw_prefix, draw_sessions
from sieve.traces.reuse_summary import (
    PLACES,
    PrefixSummary,
    ReuseBin,
    SessionSummary,
    TurnBin,
    reuse_of,
    summarise_prefix,
    summarise_sessions,
)


def blocks(chains, size=10, prompt=None):
    """Prefix blocks of lists of block numbers."""
    start = np.concatenate([[0], np.cumsum([len(c) for c in chains])]).astype(np.int64)
    flat = np.array([i for chain in chains for i in chain], np.int64)
    prompt = np.array([len(c) * size for c in chains]) if prompt is None else np.asarray(prompt)
    return PrefixBlocks(size, start, flat, prompt)


def lists(prefix):
    return [
        prefix.ids[a:b].tolist() for a, b in zip(prefix.start[:-1], prefix.start[1:], strict=True)
    ]


def random_chains(rng, n):
    """Each chain goes on from a random beginning of an earlier one, or is new."""
    chains, fresh = [], iter(range(10**6))
    for i in range(n):
        old = chains[rng.integers(i)] if i and rng.random() < 0.7 else []
        kept = old[: rng.integers(len(old) + 1)]
        chains.append([*kept, *(next(fresh) for _ in range(rng.integers(0 if kept else 1, 5)))])
    return chains


def plain_reuse(chains):
    """Leading blocks that an earlier chain had, and how long ago the last of them was used."""
    last, found = {}, []
    for i, chain in enumerate(chains):
        count = 0
        while count < len(chain) and chain[count] in last:
            count += 1
        found.append((count, i - last[chain[count - 1]] if count else 0))
        last |= dict.fromkeys(chain, i)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_reuse_is_that_of_a_plain_loop(seed):
    chains = random_chains(np.random.default_rng(seed), 1 + 3 * seed)
    reused, distance = reuse_of(blocks(chains))
    assert list(zip(reused.tolist(), distance.tolist(), strict=True)) == plain_reuse(chains)


def test_the_common_beginning_is_the_longest_that_most_have():
    # All begin with the same three blocks.
    summary = summarise_prefix(blocks([[0, 1, 2, 3 + i] for i in range(10)]))
    assert (summary.root_blocks, summary.root_share) == (3, 1.0)
    assert [part.deep_share for part in summary.bins] == [0.0]
    assert summary.distance == ()
    # 9 of 10 prompts find 3 of their 4 blocks.
    assert summary.hit_ratio == pytest.approx(27 / 40)


@pytest.mark.parametrize(("having", "blocks_", "share"), [(1, 0, 0.0), (2, 1, 0.2), (5, 1, 0.5)])
def test_a_beginning_is_common_from_a_fifth_of_the_requests_on(having, blocks_, share):
    chains = [[0, 100 + i] if i < having else [1 + i] for i in range(10)]
    dense = {old: new for new, old in enumerate(sorted({b for c in chains for b in c}))}
    summary = summarise_prefix(blocks([[dense[b] for b in c] for c in chains]))
    assert (summary.root_blocks, summary.root_share) == (blocks_, share)


def test_bins_of_prompts_by_hand():
    # Prompts of 10 and 40 tokens. The long ones 2 and 4 go on from 1 and 2; nothing is common.
    chains = [[0], [1, 2, 3, 4], [1, 2, 3, 5], [6], [1, 2, 7, 8], *[[9 + i] for i in range(15)]]
    summary = summarise_prefix(blocks(chains))
    assert summary.root_blocks == 0
    short, long = summary.bins
    assert (short.tokens_from, short.num_requests, short.deep_share) == (10, 17, 0.0)
    assert short.reused_share == ()
    assert (long.tokens_from, long.num_requests) == (40, 3)
    assert long.deep_share == pytest.approx(2 / 3, rel=1e-4)
    # 3 and 2 of 4 blocks, 1 and 2 requests ago.
    assert (long.reused_share[0], long.reused_share[-1]) == (0.5, 0.75)
    assert long.reused_share[PLACES.index(0.5)] == 0.625
    assert (summary.distance[0], summary.distance[-1]) == (1.0, 2.0)


def chat(prefix=None):
    """Turns of two sessions: prompts 100, 160, 300 and 40, 70."""
    return Requests(
        np.zeros(5), np.array([100, 160, 300, 40, 70]), np.array([5, 6, 7, 8, 9]), source="x",
        previous=np.array([-1, 0, 1, -1, 3]), delay_s=np.array([0.0, 1.0, 3.0, 0.0, 2.0]),
        prefix=prefix,
    )  # fmt: skip


def test_sessions_by_hand_where_nothing_is_told_of_prefixes():
    """Then all that was said before is taken to be kept."""
    summary = summarise_sessions(chat())
    assert (summary.num_sessions, summary.block_tokens, summary.hit_ratio) == (2, 0, 0.0)
    assert (summary.turns[0], summary.turns[-1]) == (2.0, 3.0)
    assert summary.turns[PLACES.index(0.5)] == 2.5
    assert (summary.first_input_tokens[0], summary.first_input_tokens[-1]) == (40.0, 100.0)
    assert summary.max_input_tokens == 300
    assert (summary.pause_s[0], summary.pause_s[PLACES.index(0.5)]) == (1.0, 2.0)
    assert summary.output_tokens[PLACES.index(0.5)] == 7.0
    # Previous prompts of 40, 100, 160: powers 32, 64, 128.
    assert [(b.tokens_from, b.num_turns) for b in summary.bins] == [(40, 1), (100, 1), (160, 1)]
    assert [set(b.kept_share) for b in summary.bins] == [{1.0}] * 3
    assert [set(b.added_tokens) for b in summary.bins] == [{30.0}, {60.0}, {140.0}]


def test_sessions_keep_the_blocks_that_agree():
    # Blocks of 20: 5, 8, 15, 2 and 3 of them. The second turn keeps 4 blocks of 5, the third all 8
    # of the second, the last turn none.
    chains = [
        [0, 1, 2, 3, 4],
        [0, 1, 2, 3, 5, 6, 7, 8],
        [0, 1, 2, 3, 5, 6, 7, 8, *range(9, 16)],
        [16, 17],
        [18, 19, 20],
    ]
    summary = summarise_sessions(chat(blocks(chains, 20, [100, 160, 300, 40, 70])))
    assert summary.block_tokens == 20
    assert [set(b.kept_share) for b in summary.bins] == [{0.0}, {0.8}, {1.0}]
    assert [set(b.added_tokens) for b in summary.bins] == [{70.0}, {80.0}, {140.0}]
    # 4 blocks and 8 blocks of 20 are there, of 670 tokens.
    assert summary.hit_ratio == pytest.approx(240 / 670, rel=1e-4)


def reuse(share, distance, *, deep=1.0, root=0, root_share=0.0):
    flat = tuple(float(distance) for _ in PLACES)
    part = ReuseBin(1, 100, deep, tuple(share for _ in PLACES))
    return PrefixSummary(16, root, root_share, flat, (part,), 0.0)


def test_drawn_prompts_go_on_from_as_many_requests_ago():
    prompt = np.full(12, 64)
    chains = lists(draw_prefix(reuse(0.5, 3), prompt, seed=1))
    assert [len(chain) for chain in chains] == [4] * 12
    used = set(chains[0])
    assert sorted(used) == [0, 1, 2, 3]
    for i, chain in enumerate(chains[1:], 1):
        # Nearer where there are not so many yet: 3 mod 1 and 3 mod 2.
        source = i - 3 if i >= 3 else 3 % i
        assert chain[:2] == chains[source][:2]
        assert used.isdisjoint(chain[2:])
        used |= set(chain)
    assert used == set(range(4 + 11 * 2))


def test_drawn_prompts_go_on_from_one_that_is_long_enough():
    # Ten blocks and two in turns; all of a prompt is reused, of the request before.
    prompt = np.tile([160, 32], 6)
    chains = lists(draw_prefix(reuse(1.0, 1), prompt, seed=0))
    # A long one finds enough only in the long one before. A short one takes the short one, which
    # is one further off (1) but no 8 blocks too long (8 / 3).
    assert chains[0] == list(range(10))
    assert chains[2::2] == [chains[0]] * 5
    assert chains[1] == chains[0][:2]
    assert chains[3::2] == [chains[1]] * 5


def test_a_drawn_beginning_is_shared_as_far_as_the_prompt_reaches():
    prompt = np.array([64, 8, 33, 17])
    chains = lists(draw_prefix(reuse(0.0, 0, deep=0.0, root=2, root_share=1.0), prompt, seed=0))
    assert [len(chain) for chain in chains] == [4, 1, 3, 2]
    assert [chain[:2] for chain in chains] == [[0, 1], [0], [0, 1], [0, 1]]
    rest = [i for chain in chains for i in chain[2:]]
    assert len(set(rest)) == 3
    assert not {0, 1} & set(rest)
    alone = lists(draw_prefix(reuse(0.0, 0, deep=0.0, root=2), prompt, seed=0))
    assert sorted(i for chain in alone for i in chain) == list(range(10))


def test_bins_of_a_summary_apply_to_their_lengths():
    part = [ReuseBin(1, 1, 0.0, ()), ReuseBin(64, 1, 1.0, tuple(1.0 for _ in PLACES))]
    summary = PrefixSummary(16, 0, 0.0, tuple(1.0 for _ in PLACES), tuple(part), 0.0)
    chains = lists(draw_prefix(summary, np.array([64, 63, 64, 63]), seed=0))
    # Prompts of 64 tokens take all from the request before, those of 63 nothing.
    assert chains[2] == chains[1]
    assert len({*chains[0], *chains[1], *chains[3]}) == 12


def session_summary(**changes):
    def flat(value):
        return tuple(float(value) for _ in PLACES)

    keys = {
        "num_sessions": 10, "block_tokens": 16, "turns": flat(3), "first_input_tokens": flat(100),
        "output_tokens": flat(7), "pause_s": flat(4),
        "bins": (TurnBin(1, 1, flat(1.0), flat(50)),), "max_input_tokens": 1000, "hit_ratio": 0.0,
    }  # fmt: skip
    return SessionSummary(**(keys | changes))


def test_drawn_sessions_grow_turn_by_turn():
    got = draw_sessions(session_summary(), np.array([0.0, 9.0]), 100, seed=0, source="s")
    assert got.input_tokens.tolist() == [100, 150, 200] * 2
    assert got.output_tokens.tolist() == [7] * 6
    assert got.previous.tolist() == [-1, 0, 1, -1, 3, 4]
    assert got.delay_s.tolist() == [0.0, 4.0, 4.0] * 2
    assert got.arrival_s.tolist() == [0.0] * 3 + [9.0] * 3
    assert got.session.tolist() == [0] * 3 + [1] * 3
    # Whole blocks of 16: 6, 9 and 12; each turn keeps those of the one before.
    chains = lists(got.prefix)
    assert [len(chain) for chain in chains] == [6, 9, 12] * 2
    for first in (0, 3):
        assert chains[first + 1][:6] == chains[first]
        assert chains[first + 2][:9] == chains[first + 1]
    assert set(chains[2]).isdisjoint(chains[5])
    assert sorted({*chains[2], *chains[5]}) == list(range(24))
    assert draw_sessions(session_summary(block_tokens=0), np.zeros(1), 9, 0, "s").prefix is None


def test_drawn_sessions_end_where_the_trace_has_no_longer_prompt():
    got = draw_sessions(session_summary(max_input_tokens=199), np.zeros(2), 100, 0, "s")
    assert got.input_tokens.tolist() == [100, 150] * 2
    whole = draw_sessions(session_summary(max_input_tokens=200), np.zeros(2), 100, 0, "s")
    assert whole.input_tokens.tolist() == [100, 150, 200] * 2


@pytest.mark.parametrize("most", [1, 2, 3, 4, 100])
def test_no_more_turns_are_drawn_than_asked(most):
    got = draw_sessions(session_summary(), np.arange(50.0), most, 0, "s")
    assert len(got) == most
    assert got.input_tokens.tolist() == ([100, 150, 200] * 34)[:most]


def test_a_turn_keeps_a_share_of_the_one_before():
    half = session_summary(
        bins=(
            TurnBin(1, 1, tuple(0.5 for _ in PLACES), tuple(60.0 for _ in PLACES)),
            TurnBin(110, 1, tuple(0.1 for _ in PLACES), tuple(5.0 for _ in PLACES)),
        )
    )
    got = draw_sessions(half, np.zeros(1), 9, 0, "s")
    # 100 / 2 + 60 = 110, of the second bin; 11 + 5 = 16.
    assert got.input_tokens.tolist() == [100, 110, 16]
    chains = lists(got.prefix)
    # 50 tokens hold three whole blocks, 11 none.
    assert chains[1][:3] == chains[0][:3]
    assert chains[1][3] not in chains[0]
    assert set(chains[2]).isdisjoint({*chains[0], *chains[1]})


def test_values_between_the_places_are_linear():
    values = [10 * place for place in PLACES]
    places = np.array([0.0, 0.005, 0.25, 0.9995, 1.0])
    assert along(values, places).tolist() == pytest.approx([0.0, 0.05, 2.5, 9.995, 10.0])
    assert along((), places).tolist() == [0.0] * 5
    assert all(math.isfinite(place) for place in PLACES)

"""Ties with a leader: exact, statistical, practical; and the Pareto front."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sieve.ranking.pareto import pareto_front
from sieve.ranking.ties import RESIDUAL, Key, find_ties

NOTHING = [None] * 9


def key(middle: Any, half: Any = 0.0, samples: Any = None, indifference: float = 0.0) -> Key:
    """Return a key whose model ends lie `half` away on both sides."""
    middle = np.asarray(middle, np.float64)
    width = np.broadcast_to(np.asarray(half, np.float64), middle.shape)
    drawn = np.zeros((len(middle), 4)) if samples is None else np.asarray(samples, np.float64)
    return Key(middle, width, width, drawn, indifference)


def groups_of(key_: Key, verdicts: Any = None, families: Any = None, schedules: Any = None) -> Any:
    n = len(key_.middle)
    ties = find_ties(
        verdicts or ["clears"] * n, [key_], families or list(range(n)), schedules or [None] * n
    )
    return [t.group for t in ties], [t.kind for t in ties]


def test_model_errors_of_two_families_add_as_squares() -> None:
    # widths 0.3 and 0.4: sqrt(0.09 + 0.16) = 0.5, so 0.5 ties and 0.51 does not
    assert groups_of(key([0.0, 0.5], [0.3, 0.4])) == ([1, 1], [None, "statistical"])
    assert groups_of(key([0.0, 0.51], [0.3, 0.4])) == ([1, 2], [None, None])


def test_most_of_the_model_error_cancels_within_a_family() -> None:
    # sqrt(0.09 + 0.16) x 0.25 = 0.125
    assert RESIDUAL == 0.25
    same = ["f", "f"]
    assert groups_of(key([0.0, 0.125], [0.3, 0.4]), families=same)[0] == [1, 1]
    assert groups_of(key([0.0, 0.13], [0.3, 0.4]), families=same)[0] == [1, 2]


def test_common_traffic_noise_cancels() -> None:
    rng = np.random.default_rng(3)
    common = rng.normal(0, 0.5, 500)
    assert groups_of(key([0.0, 0.01], samples=[common, common]))[0] == [1, 2]
    alone = [common, rng.normal(0, 0.5, 500)]
    assert groups_of(key([0.0, 0.01], samples=alone)) == ([1, 1], [None, "statistical"])


def test_the_quantile_is_that_of_the_largest_of_all_comparisons() -> None:
    # Independent normal differences: the 95 % quantile of one is 1.645, of the largest of 20
    # Phi^-1(0.95^(1/20)) = 2.80.
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 1, (21, 20_000))
    noise[0] = 0.0
    one = find_ties(["c"] * 2, [key([0.0, 1.0], samples=noise[:2])], [0, 1], NOTHING)[1]
    many = find_ties(
        ["c"] * 21, [key([0.0] + [1.0] * 20, samples=noise)], list(range(21)), [None] * 21
    )
    assert one.noise == pytest.approx(1.645, rel=0.03)
    assert many[1].noise == pytest.approx(2.80, rel=0.03)


def test_a_difference_that_does_not_matter_is_a_practical_tie() -> None:
    five = math.log1p(0.05)
    assert groups_of(key([0.0, five], indifference=five)) == ([1, 1], [None, "practical"])
    assert groups_of(key([0.0, five * 1.01], indifference=five)) == ([1, 2], [None, None])


def test_equal_schedules_are_exact_ties_only_at_equal_keys() -> None:
    twins = [("s", "G", 2), ("s", "G", 2)]
    assert groups_of(key([1.0, 1.0]), schedules=twins) == ([1, 1], [None, "exact"])
    assert groups_of(key([1.0, 1.1]), schedules=twins) == ([1, 2], [None, None])
    assert groups_of(key([1.0, 1.0])) == ([1, 1], [None, "statistical"])


def test_ties_are_with_the_leader_and_not_passed_on() -> None:
    # each is within sqrt(2) x 0.4 = 0.566 of the one before, the third is 1.0 from the first
    assert groups_of(key([0.0, 0.5, 1.0], 0.4))[0] == [1, 1, 2]


def test_groups_never_cross_a_verdict() -> None:
    names = ["clears", "clears", "point_only", "misses"]
    assert groups_of(key([1.0] * 4, 1.0), verdicts=names)[0] == [1, 1, 2, 3]


def test_a_tie_holds_on_every_key_of_a_list() -> None:
    keys = [key([1.0, 1.0]), key([1.0, 3.0], 0.1)]
    assert [t.group for t in find_ties(["c"] * 2, keys, [0, 1], NOTHING)] == [1, 2]


def test_an_unknown_key_ties_with_nobody() -> None:
    assert groups_of(key([1.0, math.nan, math.nan], 1.0))[0] == [1, 2, 3]
    unknown = key([1.0, 1.1], 1.0, samples=[[0.0] * 4, [math.nan] * 4])
    assert groups_of(unknown)[0] == [1, 2]


def test_no_candidates_have_no_groups() -> None:
    assert find_ties([], [key(np.array([]), 0.0, np.zeros((0, 4)))], [], []) == []


def test_a_group_may_be_longer_than_one_comparison() -> None:
    assert groups_of(key([0.0] * 250 + [1.0], 0.1))[0] == [1] * 250 + [2]


@given(st.lists(st.tuples(st.sampled_from("cpm"), st.floats(0, 9), st.floats(0, 2)), max_size=30))
@settings(deadline=None, derandomize=True, max_examples=80)
def test_laws_of_tie_groups(rows: list[tuple[str, float, float]]) -> None:
    rows.sort(key=lambda row: ("cpm".index(row[0]), row[1]))
    middle, half = np.array([r[1] for r in rows]), np.array([r[2] for r in rows])
    ties = find_ties(
        [r[0] for r in rows],
        [key(middle, half, np.zeros((len(rows), 4)))],
        list(range(len(rows))),
        [None] * len(rows),
    )
    groups = [t.group for t in ties]
    assert groups == sorted(groups)
    assert sorted(set(groups)) == list(range(1, len(set(groups)) + 1))
    for group in set(groups):
        members = [i for i, g in enumerate(groups) if g == group]
        assert len({rows[i][0] for i in members}) == 1
        for i in members[1:]:
            assert middle[i] - middle[members[0]] <= math.hypot(half[i], half[members[0]])


def test_pareto_front_by_hand() -> None:
    # (1, 5) and (2, 3) and (4, 1) are on it; (2, 4) is beaten by (2, 3), (5, 5) by all
    keys = np.array([[1.0, 2.0, 4.0, 2.0, 5.0, 2.0, math.nan], [5.0, 3.0, 1.0, 4.0, 5.0, 3.0, 0.0]])
    assert pareto_front(keys).tolist() == [True, True, True, False, False, True, False]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=20))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_the_front_holds_exactly_what_nobody_beats(points: list[tuple[int, int]]) -> None:
    front = pareto_front(np.array(points, np.float64).T)
    for point, on_it in zip(points, front, strict=True):
        beaten = any(q != point and q[0] <= point[0] and q[1] <= point[1] for q in points)
        assert on_it != beaten

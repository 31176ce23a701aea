import numpy as np
import pytest

from sieve.errors import InvalidInput
from sieve.perf.base import INTERPOLATED, MEASURED, ROOFLINE, Timing, split, total


def test_a_timing_keeps_the_classes_of_its_parts_apart():
    time = Timing.of([1.0, 2.0], MEASURED) + Timing.of([3.0, 0.0], [INTERPOLATED, ROOFLINE])
    np.testing.assert_array_equal(time.total_s, [4.0, 2.0])
    assert time.shares() == pytest.approx({"measured": 0.5, "interpolated": 0.5})


def test_what_a_limit_adds_counts_as_roofline():
    time = Timing.of([1.0, 5.0], MEASURED).at_least([2.0, 2.0])
    np.testing.assert_array_equal(time.total_s, [2.0, 5.0])
    assert time.shares() == pytest.approx({"measured": 6 / 7, "roofline": 1 / 7})


def test_shares_of_no_time_claim_nothing():
    assert Timing.zeros(3).shares() == {"roofline": 1.0}


def test_the_sum_of_no_parts_is_zero():
    np.testing.assert_array_equal(total([], 2).total_s, [0.0, 0.0])


@pytest.mark.parametrize(("size", "parts", "share"), [(8, 2, 4), (8, 16, 1), (10, 4, 3)])
def test_the_largest_share_counts(size, parts, share):
    assert split(size, parts) == share


def test_kv_heads_are_replicated_once_tp_exceeds_them(make_shape):
    assert make_shape(tp=16).kv_heads_per_gpu == 1
    assert make_shape(tp=16).heads_per_gpu == 4


def test_sizes_below_one_are_refused(make_shape):
    with pytest.raises(InvalidInput, match="max_num_seqs: found 0"):
        make_shape(max_num_seqs=0)
    with pytest.raises(InvalidInput, match="weight_bytes_per_param"):
        make_shape(weight_bytes_per_param=0.0)

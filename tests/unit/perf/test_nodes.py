"""Step times of replicas that span nodes: by hand, and never faster than on one node."""

import numpy as np
import pytest

from sieve.errors import CoverageError, InvalidInput
from sieve.perf.collectives import allreduce_timing, collective_timing
from sieve.perf.compose import build_step_table
from sieve.perf.constants import step_constants

PORT = 50e9  # 400 Gb/s


def test_stages_on_nodes_of_their_own_send_over_the_network(make_shape):
    # One stage of 8 on each of 4 nodes: every send is 512 tokens x 8192 x 2 bytes over one port.
    shape = make_shape(tp=8, pp=4, nodes=4, scale_out_bytes_per_s=PORT)
    assert build_step_table(shape).pp_transfer_s == pytest.approx(10e-6 + 8388608 / 50e9)


def test_only_the_send_between_two_nodes_crosses(make_shape):
    # Stages 0 and 1 here, 2 and 3 there: two sends over NVLink (450 GB/s), one over the port.
    shape = make_shape(tp=4, pp=4, nodes=2, scale_out_bytes_per_s=PORT)
    expected = 10e-6 + (2 * 8388608 / 450e9 + 8388608 / 50e9) / 3
    assert build_step_table(shape).pp_transfer_s == pytest.approx(expected)


def test_stages_that_each_span_nodes_cross_with_every_send(make_shape):
    shape = make_shape(tp=16, pp=2, nodes=4, scale_out_bytes_per_s=PORT)
    assert build_step_table(shape).pp_transfer_s == pytest.approx(10e-6 + 8388608 / 50e9)


def test_all_reduce_across_nodes_is_a_ring_over_all_ports(make_shape):
    shape = make_shape(tp=16, nodes=2, scale_out_bytes_per_s=PORT)
    tokens = np.array([1024.0])
    # 8 ports of 50 GB/s carry less than a GPU's 450 GB/s; 30/16 of 16 MiB goes round.
    sent = 30 / 16 * 1024 * 8192 * 2
    expected = 3e-6 + 26 * 0.5e-6 + 4 * 2.7e-6 + sent / (0.7 * 400e9)
    time = allreduce_timing(shape, tokens)
    assert time.total_s[0] == pytest.approx(step_constants().allreduce_factor * expected)
    assert time.shares() == {"roofline": 1.0}


def test_a_fast_network_does_not_outrun_the_link_within_a_node(make_shape):
    tokens = np.array([8192.0])
    at = [
        allreduce_timing(make_shape(tp=16, nodes=2, scale_out_bytes_per_s=rate), tokens).total_s[0]
        for rate in (12.5e9, 50e9, 100e9, 1e12)
    ]
    assert at[0] > at[1] > at[2] == at[3]


def test_leaving_a_node_does_not_help(make_shape, l40s):
    # Four L40S share a slow PCIe tree, as measured; four more behind a network are no remedy.
    tokens = np.array([1.0, 64.0, 2048.0])
    near = allreduce_timing(make_shape(gpu=l40s, tp=4), tokens)
    far = allreduce_timing(
        make_shape(gpu=l40s, tp=8, nodes=2, gpus_per_node=4, scale_out_bytes_per_s=PORT), tokens
    )
    assert (far.total_s >= near.total_s).all()
    assert far.total_s[-1] == pytest.approx(near.total_s[-1])


def test_one_rank_on_each_node_has_no_link_but_the_network(make_shape):
    shape = make_shape(tp=2, nodes=2, scale_out_bytes_per_s=PORT)
    time = collective_timing(shape, "all_gather", 2, np.array([1e9]))
    expected = 3e-6 + 2.7e-6 + 1e9 / (0.7 * 50e9)
    assert time.total_s[0] == pytest.approx(step_constants().allreduce_factor * expected)


def test_crossing_is_never_quicker_and_is_noted(make_shape):
    inside = build_step_table(make_shape(tp=8))
    across = build_step_table(make_shape(tp=8, nodes=2, scale_out_bytes_per_s=PORT))
    assert (across.decode_token_s[1:] > inside.decode_token_s[1:]).all()
    assert (across.token_s >= inside.token_s).all()
    assert any("tp 8 spans 2 nodes" in note for note in across.notes)
    deep = build_step_table(make_shape(tp=8, pp=2, nodes=2, scale_out_bytes_per_s=PORT))
    assert any("1 of its 1 sends go over the network" in note for note in deep.notes)


def test_a_network_of_unknown_rate_is_no_answer(make_shape):
    for shape in (make_shape(tp=16, nodes=2), make_shape(tp=8, pp=2, nodes=2)):
        with pytest.raises(CoverageError, match=r"give fleet\.scale_out_gbs_unidirectional"):
            build_step_table(shape)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tp": 4, "pp": 3, "nodes": 5}, "must divide tp x pp x dp = 12"),
        ({"tp": 4, "pp": 3, "nodes": 2}, "6 ranks on a node are neither whole stages"),
        ({"nodes": 0}, "nodes: found 0"),
        ({"tp": 4, "dcp": 3}, "must divide tp = 4"),
    ],
)
def test_splits_that_leave_a_rest_are_refused(make_shape, change, words):
    with pytest.raises(InvalidInput, match=words):
        make_shape(**change)

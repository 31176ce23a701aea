from dataclasses import replace

import numpy as np
import pytest

from sieve.errors import CoverageError
from sieve.perf import roofline

M = np.array([1.0, 4096.0])


@pytest.mark.parametrize(
    ("dtype", "mode"), [("bf16", "bf16"), ("fp8", "fp8"), ("nvfp4", "bf16"), ("int4", "bf16")]
)
def test_weights_are_multiplied_in_a_mode_the_hardware_has(h100, dtype, mode):
    assert roofline.arithmetic_mode(h100, dtype) == mode


def test_fp8_weights_without_fp8_arithmetic_are_multiplied_in_16_bits(a100):
    assert roofline.arithmetic_mode(a100, "fp8") == "bf16"


def test_an_unknown_rate_is_no_answer(h100):
    with pytest.raises(CoverageError, match="H100: no FLOP rate for 'bf16'"):
        roofline.flops_per_s(replace(h100, flops_per_s={"fp8": 1e15}), "bf16")


def test_a_product_is_bound_by_memory_then_by_compute(h100):
    limit = roofline.gemm_limit_s(h100, M, 8192, 8192, 2.0, "bf16")
    np.testing.assert_allclose(limit, [2 * 8192 * 8192 / 3.35e12, 2 * 4096 * 8192 * 8192 / 989e12])
    assert (roofline.gemm_roofline_s(h100, M, 8192, 8192, 2.0, "bf16") > limit).all()


def test_a_ring_sends_all_but_one_share_twice():
    time = roofline.ring_roofline_s(np.array([1e9]), 4, 100e9)
    latency = roofline.COLLECTIVE_FLOOR_S + 6 * roofline.COLLECTIVE_STEP_S
    np.testing.assert_allclose(time, 1.5e9 / 100e9 + latency)


def test_gathering_goes_round_the_ring_once():
    time = roofline.ring_roofline_s(np.array([1e9]), 4, 100e9, passes=1)
    latency = roofline.COLLECTIVE_FLOOR_S + 3 * roofline.COLLECTIVE_STEP_S
    np.testing.assert_allclose(time, 0.75e9 / 100e9 + latency)


def test_a_ring_over_two_hosts_crosses_the_network_twice_a_pass():
    # 16 ranks, two passes: 30 steps, of which 2 x 2 leave a host; 30/16 of the buffer is sent.
    time = roofline.ring_roofline_s(np.array([16e6]), 16, 100e9, hosts=2)
    np.testing.assert_allclose(time, 3e-6 + 26 * 0.5e-6 + 4 * 2.7e-6 + 30e6 / 100e9)


def test_decode_attention_reads_keys_and_values(h100):
    limit = roofline.decode_attention_limit_s(h100, np.array([1000.0]), 8, 128, 2)
    np.testing.assert_allclose(limit, 1000 * 2 * 8 * 128 * 2 / 3.35e12)


def test_causal_attention_works_on_half_the_square(h100):
    limit = roofline.prefill_attention_limit_s(h100, np.array([1000.0]), 64, 128)
    np.testing.assert_allclose(limit, 4 * 64 * 128 * 1000**2 / 2 / 989e12)

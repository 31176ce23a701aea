"""Each rule of the audit on a table written here, and on the defects of the packaged set."""

import numpy as np
import polars as pl
import pytest

from sieve.perf.audit import audit, condemned
from sieve.perf.audit_compare import compare_sources

GEMM = {"gemm_dtype": "bfloat16", "n": 4096, "k": 4096}


def gemm(latency, m=None, **columns):
    m = list(range(1, len(latency) + 1)) if m is None else m
    return pl.DataFrame({"m": m, "latency_us": [float(v) for v in latency]}).with_columns(
        [pl.lit(v).alias(k) for k, v in {**GEMM, **columns}.items()]
    )


def ring(rates, op="nccl", **columns):
    """All-reduces of 1 to 8 MB at given bytes/us and GPU: rate(n) = size (n - 1) / n / time."""
    sizes = [2**19, 2**20, 2**21, 2**22]
    rows = [
        {"num_gpus": n, "message_size": s, "latency_us": 2 * s * (n - 1) / n / rate}
        for n, rate in rates.items()
        for s in sizes
    ]
    keys = {"op_name": "all_reduce", "nccl_dtype": "half"}
    return pl.DataFrame(rows).with_columns([pl.lit(v).alias(k) for k, v in keys.items()])


def by_rule(frame, op, gpu):
    return {f.rule: f for f in audit(frame, op, gpu)}


def test_a_sound_table_has_no_findings(h100):
    # Weights of 33.6 MB: 10 us of memory; at 64 tokens 2.2 us of arithmetic.
    assert audit(gemm([12.0, 12.1, 12.3, 13.0]), "gemm", h100) == []


def test_rows_quicker_than_the_arithmetic_are_condemned(h100):
    # 2 x 4096^3 FLOP at 989 TFLOP/s take 139 us.
    found = by_rule(gemm([12.0, 150.0, 100.0], m=[1, 4095, 4096]), "gemm", h100)
    assert found["faster_than_hardware"].rows.tolist() == [2]
    assert found["faster_than_hardware"].condemns


def test_data_that_fit_a_cache_are_told_from_impossible_ones(h100):
    # 33.6 MB from memory take 10.0 us, and fit any cache of the catalogue.
    found = by_rule(gemm([6.0, 6.1, 6.2]), "gemm", h100)
    assert not found["read_from_cache"].condemns
    assert len(found["read_from_cache"].rows) == 3
    # 537 MB take 160 us; at most 128 MB of them come from a cache, so 122 us remain.
    large = by_rule(gemm([100.0, 130.0, 170.0], n=65536, k=4096), "gemm", h100)
    assert large["faster_than_hardware"].rows.tolist() == [0]
    assert large["read_from_cache"].rows.tolist() == [1]


def test_a_kernel_timed_with_its_launches_is_condemned_and_its_sibling_is_not(h100):
    m = [1, 2, 4, 8, 16, 32, 4096]
    slow = gemm([84, 85, 84, 86, 85, 84, 300], m=m, source="vllm 0.24.0", kernel_source="a")
    good = gemm([12, 12, 12, 12, 12, 13, 200], m=m, source="vllm 0.25.0", kernel_source="a")
    found = [f for f in audit(pl.concat([good, slow]), "gemm", h100) if f.condemns]
    assert [f.rule for f in found] == ["launch_in_timing"]
    assert "0.24.0" in found[0].where
    assert found[0].rows.tolist() == list(range(7, 14))


def test_large_products_are_not_taken_for_launches(h100):
    m = [1, 2, 4, 8]
    frame = gemm([200, 201, 202, 203], m=m, n=65536, k=4096, source="x", kernel_source="a")
    assert "launch_in_timing" not in by_rule(frame, "gemm", h100)


@pytest.mark.parametrize(
    ("latency", "rows"),
    [
        ([12, 12, 30, 12, 12], [2]),
        ([30, 12, 12, 12, 12], [0]),
        ([12, 12, 30, 40, 12], [2, 3]),
        ([12, 12, 12, 12, 30], []),
        ([12, 12, 23, 12, 12], []),
        ([12, 30, 30, 30, 12], []),
    ],
)
def test_spikes_are_one_or_two_rows_that_more_work_does_not_share(h100, latency, rows):
    found = by_rule(gemm(latency), "gemm", h100)
    assert (found["spike"].rows.tolist() if "spike" in found else []) == rows


def test_a_kernel_slow_at_one_size_in_many_shapes_is_kept(h100):
    shapes = [gemm([12, 12, 60, 12, 12], n=n, kernel_source="c") for n in (4096, 4097, 4098)]
    found = by_rule(pl.concat(shapes), "gemm", h100)
    assert "spike" not in found
    assert found["slow_size"].rows.tolist() == [2, 7, 12]
    assert not found["slow_size"].condemns


def test_a_ring_slower_than_one_shared_path_is_condemned(l40s):
    # Rates per GPU against the pair: at least 1/4 and 1/8 of it if one path is crossed twice.
    shared = ring({2: 20e3, 4: 5.1e3, 8: 2.6e3})
    assert "slow_ring" not in by_rule(shared, "nccl", l40s)
    found = by_rule(ring({2: 20e3, 4: 5.1e3, 8: 1.5e3}), "nccl", l40s)
    assert found["slow_ring"].where.endswith("8 GPUs")
    assert found["slow_ring"].rows.tolist() == [8, 9, 10, 11]


def test_rows_that_fall_with_more_work_are_counted(h100):
    found = by_rule(gemm([20, 20, 17, 17, 21]), "gemm", h100)
    assert found["not_monotone"].rows.tolist() == [2]
    assert "1 of 4 steps" in found["not_monotone"].detail


def test_inner_holes_are_counted(h100):
    full, sparse = gemm([12, 12, 12, 12]), gemm([12, 12], m=[1, 4], n=8192)
    assert "2 inner points of 1 of 2 curves" in by_rule(pl.concat([full, sparse]), "gemm", h100)[
        "hole"
    ].detail  # fmt: skip


def test_a_precision_slower_than_16_bit_is_named(h100):
    m = list(range(1, 26))
    both = pl.concat([gemm([12] * 25, m=m), gemm([24] * 25, m=m, gemm_dtype="fp8")])
    finding = by_rule(both, "gemm", h100)["slower_than_16_bit"]
    assert finding.where == "fp8"
    assert "2.00 times" in finding.detail


def test_sources_far_apart_and_copies_are_told(h100):
    m = list(range(1, 31))
    first = gemm([12.0] * 30, m=m, source="vllm 1")
    far = gemm([24.0 + i / 100 for i in range(30)], m=m, source="sglang 1")
    copy = gemm([12.0] * 30, m=m, source="vllm 2")
    found = audit(pl.concat([first, far, copy]), "gemm", h100)
    assert {f.rule for f in found} >= {"copied", "sources_disagree"}
    pairs = {(c.first, c.second): c for c in compare_sources(pl.concat([first, far]), "gemm", [])}
    assert pairs["sglang 1", "vllm 1"].rows == 30
    assert pairs["sglang 1", "vllm 1"].median == pytest.approx(12 / 24.145, rel=1e-3)


def test_condemned_names_every_rule_of_a_row(h100):
    frame = gemm([12.0, 150.0, 100.0], m=[1, 4095, 4096])
    marks = condemned(audit(frame, "gemm", h100), frame.height)
    assert marks == [None, None, "faster_than_hardware"]


def test_findings_do_not_depend_on_the_order_of_rows(h100):
    frame = gemm([12, 12, 30, 12, 12, 13, 13]).with_columns(tag=pl.int_range(7))
    shuffled = frame.sample(fraction=1.0, shuffle=True, seed=3)
    (finding,) = [f for f in audit(shuffled, "gemm", h100) if f.rule == "spike"]
    assert shuffled["tag"].to_numpy()[finding.rows].tolist() == [2]


def test_numbers_of_rows_fit_the_frame(h100):
    frame = gemm(np.geomspace(12, 900, 40))
    for finding in audit(frame, "gemm", h100):
        assert finding.rows.max(initial=0) < frame.height

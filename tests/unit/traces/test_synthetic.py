import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sieve.errors import TraceError
from sieve.spec.models import ArrivalSpec, LengthSpec, SyntheticSpec
from sieve.traces.limits import generator
from sieve.traces.synthetic import draw_arrivals, draw_lengths, draw_synthetic, gamma_gaps

N = 200_000


def rng(seed=0):
    return generator(seed, "test")


def arrivals(n=N, **keys):
    return draw_arrivals(ArrivalSpec(**keys), n, rng())


def lengths(n=N, **keys):
    return draw_lengths(LengthSpec(**keys), n, rng())


def test_lognormal_has_the_mean_and_stdev_of_the_length_itself():
    x = lengths(distribution="lognormal", mean=1000.0, stdev=500.0)
    assert x.mean() == pytest.approx(1000, rel=0.005)
    assert x.std() == pytest.approx(500, rel=0.02)
    # Median of a lognormal: mean / sqrt(1 + (stdev/mean)^2).
    assert np.median(x) == pytest.approx(1000 / math.sqrt(1.25), rel=0.01)


def test_normal_is_clipped_and_rounded():
    x = lengths(distribution="normal", mean=100.0, stdev=20.0, min=60, max=140)
    assert x.mean() == pytest.approx(100, abs=0.3)
    assert (x.min(), x.max()) == (60, 140)
    # Two standard deviations: 2.275 % at each limit, plus half a token's width.
    assert (x == 60).mean() == pytest.approx(0.0239, abs=0.002)


def test_uniform_includes_both_ends():
    x = lengths(distribution="uniform", min=3, max=6)
    assert np.unique(x).tolist() == [3, 4, 5, 6]
    assert x.mean() == pytest.approx(4.5, abs=0.02)


def test_constant_and_its_limits():
    assert lengths(n=3, distribution="constant", value=77).tolist() == [77, 77, 77]
    assert lengths(n=1, distribution="constant", value=77, max=50).tolist() == [50]


@pytest.mark.parametrize(
    ("keys", "part"),
    [
        ({"distribution": "constant", "value": 10_000_001}, "value"),
        ({"mean": 2e7, "stdev": 1.0}, "mean"),
        ({"mean": 0.5, "stdev": 1.0}, "mean"),
        ({"mean": 5.0, "stdev": 1e9}, "stdev"),
        ({"distribution": "uniform", "max": 20_000_000}, "max"),
    ],
)
def test_lengths_outside_the_limits(keys, part):
    with pytest.raises(TraceError, match=rf"length\.{part} is .* tokens"):
        lengths(n=1, **keys)


@given(
    st.floats(1, 1e7), st.floats(1e-3, 1e7), st.sampled_from(["normal", "lognormal"]),
    st.integers(1, 1000), st.integers(0, 1000),
)  # fmt: skip
def test_every_length_is_inside_its_limits(mean, stdev, distribution, low, width):
    spec = LengthSpec(distribution=distribution, mean=mean, stdev=stdev, min=low, max=low + width)
    x = draw_lengths(spec, 50, rng())
    assert ((x >= low) & (x <= low + width)).all()


def test_poisson_gaps_are_exponential():
    x, users = arrivals(poisson_per_s=4.0)
    gap = np.diff(x)
    assert users is None
    assert x[0] == 0
    assert gap.mean() == pytest.approx(0.25, rel=0.01)
    assert (gap > 0.25).mean() == pytest.approx(math.exp(-1), abs=0.005)


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.5])
def test_gamma_gaps_have_rate_and_cv(cv):
    gap = np.diff(arrivals(gamma={"rate_per_s": 8.0, "cv": cv})[0])
    assert gap.mean() == pytest.approx(1 / 8, rel=0.02)
    assert gap.std() / gap.mean() == pytest.approx(cv, rel=0.02)


def test_constant_burst_and_closed_loop():
    assert arrivals(n=4, constant_per_s=4.0)[0].tolist() == [0, 0.25, 0.5, 0.75]
    assert arrivals(n=3, burst=True)[0].tolist() == [0, 0, 0]
    zero, users = arrivals(n=3, closed_loop=64)
    assert zero.tolist() == [0, 0, 0]
    assert users == 64


@pytest.mark.parametrize(
    "keys", [{"poisson_per_s": 2.0}, {"gamma": {"rate_per_s": 2.0, "cv": 2.0}}]
)
def test_one_request_arrives_at_zero(keys):
    assert arrivals(n=1, **keys)[0].tolist() == [0.0]


def test_extreme_arrivals():
    with pytest.raises(TraceError, match="cv is 1000"):
        arrivals(n=5, gamma={"rate_per_s": 1.0, "cv": 1000.0})
    with pytest.raises(TraceError, match="rate"):
        arrivals(n=5, poisson_per_s=1e-300)
    np.testing.assert_allclose(gamma_gaps(np.full(5, 1e-300), rng()), 1.0, rtol=1e-4)


def synthetic(arrival, **keys):
    return SyntheticSpec(
        requests=100,
        isl=LengthSpec(mean=100.0, stdev=50.0),
        osl=LengthSpec(mean=100.0, stdev=50.0),
        arrival=ArrivalSpec(**arrival),
        **keys,
    )


def test_lengths_do_not_change_with_the_arrival_process():
    a = draw_synthetic(synthetic({"poisson_per_s": 1.0}), seed=5)
    b = draw_synthetic(synthetic({"closed_loop": 3}), seed=5)
    np.testing.assert_array_equal(a.input_tokens, b.input_tokens)
    np.testing.assert_array_equal(a.output_tokens, b.output_tokens)
    assert not np.array_equal(a.input_tokens, a.output_tokens)
    assert b.closed_loop_users == 3


def test_a_shared_beginning_has_the_blocks_of_its_group():
    requests = draw_synthetic(
        synthetic({"burst": True}, prefix={"tokens": 40, "groups": 2, "share": 0.5}), seed=0
    )
    prefix = requests.prefix
    # 40 tokens hold two whole blocks of 16, where the prompt is that long.
    count = np.diff(prefix.start)
    assert set(count.tolist()) <= {0, 1, 2}
    assert 0.3 < (count > 0).mean() < 0.7
    assert len(np.unique(prefix.ids[prefix.start[:-1][count > 0]])) == 2


def test_generators_differ_by_seed_and_by_purpose():
    draws = {generator(s, p).integers(1 << 60) for s in (0, 1) for p in ("a", "b")}
    assert len(draws) == 4


def test_draws_are_the_same_on_every_machine():
    # Written down once; a change here changes every run's result.
    assert lengths(n=4, mean=1000.0, stdev=500.0).tolist() == [967, 1627, 799, 780]
    # Stretched to the stated mean rate: the last of three arrivals at 1/s comes at 2 s.
    assert arrivals(n=3, poisson_per_s=1.0)[0].tolist() == [0.0, 0.751401419, 2.0]
    bursty = arrivals(n=3, gamma={"rate_per_s": 1.0, "cv": 2.0})[0]
    assert bursty.tolist() == [0.0, 0.340888478, 2.0]

import contextlib
import hashlib
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sieve.arrays import Requests
from sieve.errors import InvalidInput, TraceError
from sieve.spec.models import TrafficSpec
from sieve.traces import at_level, available_traffic, load_traffic

# Requests at 0, 1, 2, ... 9 s with 10, 11, ... 19 input and 1, 2, ... 10 output tokens.
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:00:0{i}.5,{10 + i},{1 + i}\n" for i in range(10)
)
LENGTHS = "input_length,output_length\n" + "".join(f"{100 + i},{i + 1}\n" for i in range(10))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "azure.csv").write_text(AZURE)
    (tmp_path / "lengths.csv").write_text(LENGTHS)
    (tmp_path / "chat").write_text(AZURE)
    return tmp_path


def load(base_dir, seed=0, **keys):
    return load_traffic(TrafficSpec(**keys), seed=seed, base_dir=base_dir)


def fault(base_dir, **keys):
    with pytest.raises(TraceError) as error:
        load(base_dir, **keys)
    return str(error.value)


SYNTHETIC = {
    "requests": 500,
    "isl": {"mean": 500.0, "stdev": 300.0},
    "osl": {"mean": 100.0, "stdev": 50.0},
    "arrival": {"poisson_per_s": 5.0},
}


# Files


def test_a_file_is_read_whole(folder):
    requests = load(folder, trace="azure.csv")
    assert requests.arrival_s.tolist() == list(range(10))
    assert requests.rate_per_s == 1.0
    assert requests.source == "azure.csv"
    assert requests.sha256 == hashlib.sha256(AZURE.encode()).hexdigest()


def test_source_has_no_folders(folder):
    assert load(folder / "x" / "..", trace=str(folder / "azure.csv")).source == "azure.csv"


def test_window_then_requests_then_rate(folder):
    requests = load(folder, trace="azure.csv", window_s=[2, 8], requests=4, rate_per_s=3.0)
    assert requests.input_tokens.tolist() == [12, 13, 14, 15]
    np.testing.assert_allclose(requests.arrival_s, [0, 1 / 3, 2 / 3, 1])
    assert requests.rate_per_s == pytest.approx(3.0)


def test_window_is_closed_at_its_start_and_open_at_its_end(folder):
    assert load(folder, trace="azure.csv", window_s=[3, 5]).input_tokens.tolist() == [13, 14]


def test_a_short_file_is_taken_whole_and_noted(folder):
    requests = load(folder, trace="azure.csv", requests=50)
    assert len(requests) == 10
    assert "50 requests asked for, 10 are there" in requests.notes[0]


def test_empty_window_names_the_filter(folder):
    message = fault(folder, trace="azure.csv", window_s=[9.5, 20])
    assert message == "traffic.window_s [9.5, 20) keeps no request: arrivals run from 0 to 9 s"


def test_one_request_has_no_rate_to_scale(folder):
    assert load(folder, trace="azure.csv", requests=1, rate_per_s=3.0).arrival_s.tolist() == [0.0]


def test_arrivals_of_a_file_can_be_replaced(folder):
    requests = load(folder, trace="azure.csv", requests=3, arrival={"closed_loop": 2})
    assert requests.closed_loop_users == 2
    assert requests.input_tokens.tolist() == [10, 11, 12]
    assert "replaced" in requests.notes[-1]


# Tables of lengths


def test_a_table_of_lengths_needs_arrivals(folder):
    assert "traffic.arrival: {poisson_per_s: 4}" in fault(folder, trace="lengths.csv")


def test_a_table_of_lengths_is_drawn_in_pairs(folder):
    requests = load(folder, trace="lengths.csv", arrival={"constant_per_s": 2.0})
    assert sorted(requests.input_tokens) == list(range(100, 110))
    np.testing.assert_array_equal(requests.input_tokens - 99, requests.output_tokens)
    assert requests.arrival_s.tolist() == [i / 2 for i in range(10)]


def test_a_table_repeats_when_more_is_asked(folder):
    requests = load(folder, trace="lengths.csv", requests=30, arrival={"closed_loop": 8})
    assert set(Counter(requests.input_tokens.tolist()).values()) == {3}
    assert requests.closed_loop_users == 8
    assert any("10 rows" in note for note in requests.notes)


def test_the_order_of_rows_follows_the_seed_not_the_arrivals(folder):
    def inputs(seed, **arrival):
        return load(folder, seed, trace="lengths.csv", arrival=arrival).input_tokens.tolist()

    assert inputs(1, poisson_per_s=1.0) == inputs(1, burst=True)
    assert inputs(1, burst=True) != inputs(2, burst=True)


def test_times_without_a_unit_are_not_guessed(folder):
    (folder / "t.csv").write_text("timestamp,input_length,output_length\n1,2,3\n")
    assert "unit" in fault(folder, trace="t.csv", arrival={"burst": True})
    assert len(load(folder, trace="t.csv", format="lengths", arrival={"burst": True})) == 1


# Names, formats, faults


def test_unknown_name_gets_the_nearest(folder):
    message = fault(folder, trace="chatt")
    assert "'chatt' is neither" in message
    assert "did you mean chat?" in message
    assert "reasoning" in message


def test_unknown_format_lists_columns_and_formats(folder):
    (folder / "t.csv").write_text("when,how_long\n1,2\n")
    message = fault(folder, trace="t.csv")
    assert "columns found: when, how_long" in message
    assert "azure_csv" in message
    (folder / "t.jsonl").write_text('{"time": 0, "tokens": 3}\n')
    assert "JSON; known formats" in fault(folder, trace="t.jsonl")
    (folder / "t.jsonl").write_text('{"timestamp": 0, "input_length": 3}\n')
    message = fault(folder, trace="t.jsonl")
    assert "do not state the unit" in message
    assert "mooncake_trace (ms" in message


def test_a_format_given_is_held_to(folder):
    assert "TIMESTAMP is missing" in fault(folder, trace="lengths.csv", format="azure_csv")
    message = fault(folder, trace="azure.csv", format="lengths", arrival={"burst": True})
    assert "not a table of lengths" in message


@pytest.mark.parametrize("trace", [".", "a\0b", "x" * 5000, "", "none/such.csv"])
def test_odd_paths_are_input_errors(folder, trace):
    assert fault(folder, trace=trace)


@pytest.mark.parametrize(
    ("keys", "part"),
    [
        ({"arrival": {"closed_loop": 3}, "rate_per_s": 2.0}, "rate_per_s: a closed loop"),
        ({"arrival": {"closed_loop": 3}, "window_s": [0, 2]}, "window_s: a closed loop"),
        ({"arrival": {"burst": True}, "rate_per_s": 2.0}, "arrive at once"),
        ({"arrival": {"constant_per_s": 1e-9}}, "spans"),
        ({"arrival": {"constant_per_s": 1.0}, "rate_per_s": 1e-300}, "traffic.rate_per_s"),
    ],
)
def test_contradictions(folder, keys, part):
    assert part in fault(folder, trace="lengths.csv", **keys)


@settings(deadline=None)  # what is read is tested, not how fast
@given(st.binary(max_size=200))
def test_any_bytes_are_requests_or_an_input_error(tmp_path_factory, noise):
    folder = tmp_path_factory.getbasetemp()
    for content in (noise, AZURE.encode() + noise, LENGTHS.encode() + noise):
        (folder / "noise.csv").write_bytes(content)
        with contextlib.suppress(TraceError):
            assert len(load(folder, trace="noise.csv", arrival={"burst": True})) >= 1


# Shipped traffic


def test_shipped_names():
    assert set(available_traffic()) == {"chat", "coding", "rag", "reasoning"}
    assert all(sentence.endswith(".") for sentence in available_traffic().values())


def test_a_shipped_name_wins_over_a_file(folder):
    assert len(load(folder, trace="chat")) == 2000
    assert len(load(folder, trace="./chat")) == 10


@pytest.mark.parametrize("name", ["chat", "rag", "reasoning"])
def test_shipped_traffic_is_valid(folder, name):
    requests = load(folder, trace=name)
    assert requests.arrival_s[0] == 0
    assert (np.diff(requests.arrival_s) >= 0).all()
    assert requests.input_tokens.min() >= 1
    assert requests.output_tokens.min() >= 1
    assert requests.source == name


def test_shipped_traffic_scaled(folder):
    requests = load(folder, trace="chat", requests=300, rate_per_s=12.0)
    assert len(requests) == 300
    assert requests.rate_per_s == pytest.approx(12.0)


def test_shipped_window(folder):
    requests = load(folder, trace="chat", window_s=[600, 660])
    # The window from 600 to 720 s of the trace has about 5 requests a second.
    assert 200 < len(requests) < 400
    assert requests.arrival_s[0] == 0
    assert requests.arrival_s[-1] < 60
    assert len(load(folder, trace="chat", window_s=[600, 660], requests=20)) == 20
    short = load(folder, trace="chat", window_s=[600, 610], requests=5000)
    assert any("of the 5000 requests asked for" in note for note in short.notes)


def test_shipped_traffic_says_when_its_part_has_another_rate(folder):
    # The trace begins below its mean: 456 and 682 requests in its first two windows of 120 s.
    requests = load(folder, trace="chat", requests=456 + 682)
    assert requests.rate_per_s == pytest.approx((456 + 682) / 240, rel=0.01)
    assert any("4.74/s" in note and "5.53/s" in note for note in requests.notes)
    assert len(load(folder, trace="chat", requests=1)) == 1


def test_shipped_lengths_with_other_arrivals(folder):
    requests = load(folder, trace="reasoning", requests=40, arrival={"closed_loop": 4})
    assert requests.closed_loop_users == 4
    assert len(requests) == 40


def test_format_does_not_go_with_a_shipped_name(folder):
    assert "traffic.format" in fault(folder, trace="chat", format="lengths")


# Same spec and seed, same requests


@pytest.mark.parametrize(
    "keys",
    [
        {"trace": "chat"},
        {"trace": "reasoning", "window_s": [10, 500]},
        {"trace": "lengths.csv", "arrival": {"gamma": {"rate_per_s": 2.0, "cv": 2.0}}},
        {"synthetic": SYNTHETIC},
    ],
)
def test_the_seed_decides(folder, keys):
    one, same, other = load(folder, 7, **keys), load(folder, 7, **keys), load(folder, 8, **keys)
    for field in ("arrival_s", "input_tokens", "output_tokens"):
        np.testing.assert_array_equal(getattr(one, field), getattr(same, field))
        assert not np.array_equal(getattr(one, field), getattr(other, field))
    assert one.sha256 == same.sha256


def test_the_hash_follows_what_is_drawn(folder):
    base = load(folder, trace="chat").sha256
    assert load(folder, trace="chat", levels=[1.0]).sha256 == base
    assert load(folder, trace="chat", requests=2000).sha256 == base
    assert load(folder, 1, trace="chat").sha256 != base
    assert load(folder, trace="chat", requests=1999).sha256 != base
    assert load(folder, trace="reasoning").sha256 != base


def test_synthetic_seed_wins(folder):
    own = {**SYNTHETIC, "seed": 3}
    a, b = load(folder, 0, synthetic=own), load(folder, 1, synthetic=own)
    np.testing.assert_array_equal(a.input_tokens, b.input_tokens)
    assert a.sha256 == b.sha256
    assert a.source == "synthetic"


def test_synthetic_window_and_rate(folder):
    requests = load(folder, synthetic=SYNTHETIC, window_s=[10, 20], rate_per_s=1.0)
    assert 20 < len(requests) < 90
    assert requests.rate_per_s == pytest.approx(1.0)
    assert "keeps no request" in fault(folder, synthetic=SYNTHETIC, window_s=[1e6, 2e6])


# Load levels


def test_levels_divide_times_and_multiply_users():
    n = np.ones(3, np.int64)
    requests = Requests(np.array([0.0, 1.0, 4.0]), n, n)
    assert at_level(requests, 2.0).arrival_s.tolist() == [0.0, 0.5, 2.0]
    assert at_level(requests, 0.5).rate_per_s == requests.rate_per_s / 2
    loop = replace(requests, closed_loop_users=5)
    assert [at_level(loop, x).closed_loop_users for x in (0.01, 0.5, 1.0, 1.25)] == [1, 3, 5, 6]


@pytest.mark.parametrize("level", [0.0, -1.0, float("nan"), float("inf")])
def test_levels_are_positive(level):
    requests = Requests(np.zeros(1), np.ones(1, np.int64), np.ones(1, np.int64))
    with pytest.raises(InvalidInput, match="load level"):
        at_level(requests, level)
